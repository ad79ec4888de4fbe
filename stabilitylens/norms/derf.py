"""Derf: the error function in place of a norm."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.kernels.squash import squash
from stabilitylens.norms._norm import checked, norm, width


@norm("derf")
class Derf(nn.Module):
    r"""Squashes each element by the error function; no statistic of the token is taken.

    Formula: $y = w \odot \operatorname{erf}(\alpha x + s) + b$ with two learned numbers α and s.
    Source: Chen et al. 2025, "Stronger Normalization-Free Transformers", https://arxiv.org/abs/2512.10938.
    Defaults: α = 0.5, s = 0, w = 1, b = 0.
    Known failure: as DyT: where |αx + s| is large, the gradient is gone, here as fast as a Gaussian's tail.

    Args:
        d: size of the last axis.
        alpha, shift: where α and s start.
        bias: whether there is a b.
    """

    def __init__(self, d: int, alpha: float = 0.5, shift: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.d = width(d)
        self.alpha, self.shift = nn.Parameter(torch.tensor(alpha)), nn.Parameter(torch.tensor(shift))
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d)) if bias else None

    def forward(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """Squash each element."""
        return squash(checked(x, self.d), "erf", self.alpha, self.shift, self.weight, self.bias)
