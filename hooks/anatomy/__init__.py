"""Read what a model is off its dataflow: the only part that runs the model to learn about it."""

from stabilitylens.hooks.anatomy.blocks import find_blocks as find_blocks
from stabilitylens.hooks.anatomy.reader import read_anatomy as read_anatomy

__all__ = ["find_blocks", "read_anatomy"]
