"""What every placement of norms around a sub-layer has in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from stabilitylens.errors import BadInput
from stabilitylens.norms._norm import made
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
        BadInput: no placement has this name, an option is missing or unknown, or ``norm`` is a norm instead of what makes one.
    """
    if name not in PLACEMENTS:
        raise BadInput(f"there is no placement called {name!r}; choose one of {', '.join(PLACEMENTS.names())}")
    if isinstance(norm, nn.Module) or not callable(norm):
        raise BadInput(f"norm= makes each norm that a placement needs, as in lambda: RMSNorm(512); here it is {type(norm).__name__}")
    return made(f"the placement {name!r}", PLACEMENTS[name], branch, norm, **options)
