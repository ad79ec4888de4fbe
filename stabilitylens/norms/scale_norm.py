"""ScaleNorm."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.kernels.rms_norm import wide
from stabilitylens.norms._norm import checked, norm, width


@norm("scale_norm")
class ScaleNorm(nn.Module):
    r"""Gives every token one learned length.

    Formula: $y = g\, x / \max(\lVert x \rVert_2, \varepsilon)$ with one learned number g.
    Source: Nguyen and Salazar 2019, https://arxiv.org/abs/1910.05895.
    Defaults: g starts at √d, where it equals RMSNorm without gain; ε = 1e-5.
    Known failure: one number can't silence an outlier feature, which the gain of RMSNorm can.

    Args:
        d: size of the last axis.
        eps: least length that is divided by.
    """

    def __init__(self, d: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.d, self.eps = width(d), eps
        self.g = nn.Parameter(torch.tensor(math.sqrt(d)))

    def forward(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """Normalise each token."""
        h = wide(checked(x, self.d))
        length = torch.linalg.vector_norm(h, dim=-1, keepdim=True).clamp(min=self.eps)
        out: Tensor = (self.g.to(h.dtype) * h / length).to(x.dtype)
        return out
