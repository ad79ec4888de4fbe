"""What a module is made of, counted from its parameters and the layout of its children."""

from __future__ import annotations

import re
from functools import cache

from torch import nn

from stabilitylens.hooks.names import canonical_names

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Bilinear)


class Structure:
    """Structural facts about modules, each computed once; keep it no longer than the model stays as it is."""

    def __init__(self) -> None:
        self.matrices = cache(self._matrices)
        self.linear_matrices = cache(self._linear_matrices)
        self.norms = cache(self._norms)
        self.pattern = cache(self._pattern)

    def could_be_block(self, module: nn.Module) -> bool:
        """Whether it runs, has parts, and holds two weight matrices or more."""
        return self.runs(module) and bool(module._modules) and self.matrices(module) >= 2

    def runs(self, module: nn.Module) -> bool:
        """Whether it has a forward of its own."""
        return getattr(module.forward, "__func__", None) is not nn.Module.forward

    def is_norm(self, module: nn.Module) -> bool:
        """Whether its own parameters are all vectors or scalars: the layout of every affine norm."""
        own = [p for p in module._parameters.values() if p is not None]
        return not module._modules and bool(own) and not isinstance(module, _WEIGHTED) and all(p.dim() < 2 for p in own)

    def similarity(self, a: nn.Module, b: nn.Module) -> float:
        """Share of inner names in common, numbers apart: 1 for the same layout."""
        ours, theirs = self.pattern(a), self.pattern(b)
        return len(ours & theirs) / max(1, len(ours | theirs))

    def _matrices(self, module: nn.Module) -> int:
        """Weights of two or more dimensions; a linear layer whose weight was sharded flat counts too."""
        return sum(_own_weights(m, 2) for m in module.modules())

    def _linear_matrices(self, module: nn.Module) -> int:
        return sum(_own_weights(m, 2, 2) for m in module.modules())

    def _norms(self, module: nn.Module) -> int:
        return sum(self.is_norm(m) for m in module.modules())

    def _pattern(self, module: nn.Module) -> frozenset[str]:
        names = canonical_names(module)
        inner = (names[path] for path, _ in module.named_modules())
        return frozenset(re.sub(r"\d+", "#", name) for name in inner if name)


def _own_weights(module: nn.Module, least: int, most: int = 99) -> int:
    if isinstance(module, nn.Embedding):
        return 0
    own = [p for p in module._parameters.values() if p is not None]
    found = sum(least <= p.dim() <= most for p in own)
    flat = isinstance(module, nn.Linear) and not any(p.dim() >= least for p in own)
    return found + flat
