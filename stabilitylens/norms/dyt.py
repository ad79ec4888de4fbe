"""DyT: a bounded function in place of a norm."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.kernels.squash import squash
from stabilitylens.norms._norm import checked, norm, width


@norm("dyt")
class DyT(nn.Module):
    r"""Squashes each element by tanh; no statistic of the token is taken.

    Formula: $y = w \odot \tanh(\alpha x) + b$ with one learned number α.
    Source: Zhu et al. 2025, https://arxiv.org/abs/2503.10622.
    Defaults: α = 0.5; in language models the authors start α in attention and elsewhere at 0.8 and 0.2 (7B), 0.6 and
    0.15 (13B), 0.2 and 0.05 (34B and 70B).
    Known failure: it does not make the stream's size irrelevant: where |αx| is large, the gradient is gone.

    Args:
        d: size of the last axis.
        alpha: where α starts.
        bias: whether there is a b.
    """

    def __init__(self, d: int, alpha: float = 0.5, bias: bool = True) -> None:
        super().__init__()
        self.d = width(d)
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.weight = nn.Parameter(torch.ones(d))
        self.bias = nn.Parameter(torch.zeros(d)) if bias else None

    def forward(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """Squash each element."""
        return squash(checked(x, self.d), "tanh", self.alpha, None, self.weight, self.bias)
