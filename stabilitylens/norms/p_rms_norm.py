"""Partial RMSNorm."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.kernels.rms_norm import wide
from stabilitylens.norms._norm import checked, norm, width


@norm("p_rms_norm")
class PartialRMSNorm(nn.Module):
    r"""RMSNorm with the root mean square of the first elements only.

    Formula: $y = w \odot x / \sqrt{\tfrac1k \sum_{j \le k} x_j^2 + \varepsilon}$ with $k = \lceil p\,d \rceil$.
    Source: Zhang and Sennrich 2019, section 4, https://arxiv.org/abs/1910.07467.
    Defaults: p = 1/16 as in their experiments, ε = 1e-8.
    Known failure: it assumes that elements are distributed alike; outlier features among or outside the first k scale the rest.

    Args:
        d: size of the last axis.
        p: share of elements that the root mean square is of, above 0 and at most 1.
        eps: added under the root.

    Where w is in fp32 and the input in 16 bits, the output is in fp32, as with Llama's RMSNorm.
    """

    def __init__(self, d: int, p: float = 0.0625, eps: float = 1e-8) -> None:
        super().__init__()
        if not 0 < p <= 1:
            raise BadInput(f"p is the share of elements that the norm is of and must lie in (0, 1], not {p}")
        self.d, self.k, self.eps = width(d), math.ceil(p * d), eps
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """Normalise each token."""
        h = wide(checked(x, self.d))
        h = h * torch.rsqrt(h[..., : self.k].square().mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)
