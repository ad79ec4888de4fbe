"""RMSNorm in the rounding modes of Llama and Gemma."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.kernels.rms_norm import Rounding, rms_norm
from stabilitylens.norms._norm import checked, norm, rounding_mode, width


@norm("rms_norm")
class RMSNorm(nn.Module):
    r"""Divides each token by the root of its mean square; computes in fp32.

    Formula: $y_i = w_i\, x_i / \sqrt{\tfrac1d \sum_j x_j^2 + \varepsilon}$.
    Source: Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.
    Defaults: ε = 1e-6 and w = 1 as in Llama; ``gemma`` learns w as a difference from 1 and starts at 0.
    Known failure: in 16 bits it matters whether x̂ is rounded before or after the gain; a checkpoint belongs to one mode.

    Args:
        d: size of the last axis.
        eps: added under the root.
        rounding: ``llama`` rounds x̂ to the input's dtype, then multiplies by w; ``gemma`` multiplies by 1 + w in
            fp32, then rounds; ``fp32`` multiplies by w in fp32, then rounds (OLMo 2).
        gain: whether there is a w.
        bias: whether a learned vector is added.

    With ``llama``, where w or the bias is in fp32 and the input in 16 bits, the output is in fp32, as in Llama's own code.
    """

    def __init__(
        self, d: int, eps: float = 1e-6, rounding: Rounding = "llama", gain: bool = True, bias: bool = False
    ) -> None:
        super().__init__()
        rounding_mode(rounding)
        self.d, self.eps, self.rounding = width(d), eps, rounding
        start = torch.zeros(d) if rounding == "gemma" else torch.ones(d)
        self.weight = nn.Parameter(start) if gain else None
        self.bias = nn.Parameter(torch.zeros(d)) if bias else None

    def forward(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """Normalise each token."""
        return rms_norm(checked(x, self.d), self.weight, self.bias, self.eps, self.rounding)
