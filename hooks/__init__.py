"""The only code that touches a live model: attach a lens to it, read its anatomy."""

from stabilitylens.hooks.attaching import attach
from stabilitylens.hooks.guard import LensWarning
from stabilitylens.hooks.lens import Lens

__all__ = ["Lens", "LensWarning", "attach"]
