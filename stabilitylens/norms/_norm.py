"""What every norm registers itself with, so that it is found by scanning this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from stabilitylens.errors import BadInput
from stabilitylens.registry import Registry

NORMS: Registry[Callable[..., nn.Module]] = Registry("stabilitylens.norms")
Layer = TypeVar("Layer", bound=type[nn.Module])


def norm(name: str) -> Callable[[Layer], Layer]:
    """Register a layer that is made by ``layer(d, **options)`` and maps (…, d) to (…, d)."""
    return NORMS.named(name)


def make_norm(name: str, d: int, **options: Any) -> nn.Module:
    """Make a norm by its name, as ``make_norm("rms_norm", 512, eps=1e-5)``.

    Raises:
        BadInput: no norm has this name.
    """
    if name not in NORMS:
        raise BadInput(f"there is no norm called {name!r}; choose one of {', '.join(NORMS.names())}")
    return NORMS[name](d, **options)
