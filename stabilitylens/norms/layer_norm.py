"""LayerNorm."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.kernels.layer_norm import layer_norm
from stabilitylens.norms._norm import checked, norm, width


@norm("layer_norm")
class LayerNorm(nn.Module):
    r"""Takes each token's mean away and divides by its standard deviation.

    Formula: $y = w \odot (x - \mu) / \sqrt{\sigma^2 + \varepsilon} + b$ with the biased variance.
    Source: Ba, Kiros and Hinton 2016, https://arxiv.org/abs/1607.06450.
    Defaults: ε = 1e-5, w = 1, b = 0, as in PyTorch.
    Known failure: a token whose elements are all equal becomes b, whatever its size.

    Args:
        d: size of the last axis.
        eps: added under the root.
        gain: whether there is a w.
        bias: whether there is a b.
    """

    def __init__(self, d: int, eps: float = 1e-5, gain: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.d, self.eps = width(d), eps
        self.weight = nn.Parameter(torch.ones(d)) if gain else None
        self.bias = nn.Parameter(torch.zeros(d)) if bias else None

    def forward(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """Normalise each token."""
        return layer_norm(checked(x, self.d), self.weight, self.bias, self.eps)
