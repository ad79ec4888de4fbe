"""A norm whose strength depends on the token: an experiment."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.kernels.rms_norm import wide
from stabilitylens.norms._norm import checked, norm, width


@norm("adaptive_norm")
class AdaptiveNorm(nn.Module):
    r"""Between RMSNorm and the identity, as the token asks for. An experiment: no published model is known to use it.

    Formula: $y = w \odot x\, r^{-s}$ with $r = \sqrt{\overline{x^2} + \varepsilon}$ and the strength
    $s = \sigma(\langle u, x / r\rangle / \sqrt d + c)$; s = 1 is RMSNorm, s = 0 leaves the token's size alone, and the
    root mean square of y without gain is $r^{1-s}$.
    Source: none; the interpolation in the exponent is our own choice.
    Defaults: u = 0 and c = 4, so that it starts as RMSNorm but for s = 0.98; ε = 1e-6.
    Known failure: a strength that falls lets the stream's size through, and with it what a norm is there to stop.

    Args:
        d: size of the last axis.
        strength: where c starts.
        eps: added under the root.
    """

    def __init__(self, d: int, strength: float = 4.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.d, self.eps = width(d), eps
        self.weight = nn.Parameter(torch.ones(d))
        self.direction, self.strength = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.tensor(strength))

    def strength_of(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row 1"]:
        """The strength s of each token."""
        h = wide(checked(x, self.d))
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
        along = (h * wide(self.direction)).sum(-1, keepdim=True) / x.shape[-1] ** 0.5
        return torch.sigmoid(along + wide(self.strength))

    def forward(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """Normalise each token by its own strength."""
        h = wide(checked(x, self.d))
        log_r = 0.5 * torch.log(h.square().mean(-1, keepdim=True) + self.eps)
        h = h * torch.exp(-self.strength_of(x) * log_r)
        return (h * wide(self.weight)).to(x.dtype)
