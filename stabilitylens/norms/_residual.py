"""What every placement of norms around a sub-layer has in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from stabilitylens.errors import BadInput
from stabilitylens.registry import Registry

#: makes one norm, as ``lambda: RMSNorm(512)``
MakeNorm = Callable[[], nn.Module]


class Residual(nn.Module):
    """A sub-layer F in a residual stream; arguments after the stream are handed to F.

    Args:
        branch: F, which maps the stream's shape to itself.
    """

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch


PLACEMENTS: Registry[Callable[..., Residual]] = Registry("stabilitylens.norms")
Wrapper = TypeVar("Wrapper", bound=type[Residual])


def placement(name: str) -> Callable[[Wrapper], Wrapper]:
    """Register a residual wrapper under its name."""
    return PLACEMENTS.named(name)


def residual(name: str, branch: nn.Module, norm: MakeNorm, **options: Any) -> Residual:
    """Put a sub-layer into a residual stream, as ``residual("peri", mlp, lambda: RMSNorm(512))``.

    Args:
        name: ``pre``, ``post``, ``peri`` (also called ``sandwich``), ``output``, ``periodic``, ``parallel``, ``deep``,
            ``none`` or ``rezero``.
        branch: the sub-layer.
        norm: makes each norm that the placement needs.
        options: what the placement takes beyond that, e.g. ``layer`` for ``periodic`` and ``alpha`` for ``deep``.

    Raises:
        BadInput: no placement has this name.
    """
    if name not in PLACEMENTS:
        raise BadInput(f"there is no placement called {name!r}; choose one of {', '.join(PLACEMENTS.names())}")
    return PLACEMENTS[name](branch, norm, **options)
