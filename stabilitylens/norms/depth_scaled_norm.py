"""LayerNorm scaling: the output of a layer's norm shrinks with its depth."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.errors import BadInput


class DepthScaledNorm(nn.Module):
    r"""Multiplies what a norm returns by 1/√ℓ, so that the variance of a Pre-LN stream grows less with depth.

    Formula: $y = N(x) / \sqrt{\ell}$ in layer ℓ, counted from 1.
    Source: Sun et al. 2025, "The Curse of Depth in Large Language Models", https://arxiv.org/abs/2502.05795.
    Defaults: none.
    Known failure: on top of an initialisation that is scaled by depth it scales twice.

    Args:
        inner: the norm.
        layer: ℓ, from 1.
    """

    def __init__(self, inner: nn.Module, layer: int) -> None:
        super().__init__()
        if layer < 1:
            raise BadInput(f"layers count from 1, not {layer}")
        self.inner, self.scale = inner, 1 / math.sqrt(layer)

    def forward(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """Normalise and scale."""
        out: Tensor = self.inner(x) * self.scale
        return out
