"""BatchNorm over sequences, with padding left out."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from stabilitylens.kernels.rms_norm import wide
from stabilitylens.norms._norm import norm


@norm("batch_norm")
class BatchNorm(nn.Module):
    r"""Normalises each feature over all real tokens of a batch.

    Formula: $y = w \odot (x - \mu_B) / \sqrt{\sigma_B^2 + \varepsilon} + b$; in evaluation with running averages of
    $\mu_B$ and of the unbiased variance.
    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.
    Defaults: ε = 1e-5, momentum 0.1, as in PyTorch.
    Known failure: in a causal model a token sees later ones, and other sequences, through the moments; with few
    tokens the running averages are not what training saw. Padding that is not masked pulls every moment to it.

    Args:
        d: size of the last axis.
        eps: added under the root.
        momentum: share of a batch in the running averages.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, d: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.register_buffer("running_mean", torch.zeros(d))
        self.register_buffer("running_var", torch.ones(d))

    def _moments(self, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        tokens = h.flatten(0, -2) if mask is None else h[mask]
        mean = tokens.mean(0)
        variance = (tokens - mean).square().mean(0)
        with torch.no_grad():
            unbiased = variance * (len(tokens) / max(1, len(tokens) - 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return mean, variance

    def forward(
        self, x: Float[Tensor, "*row d"], mask: Bool[Tensor, "*row"] | None = None
    ) -> Float[Tensor, "*row d"]:
        """Normalise; ``mask`` is True at real tokens. Padding is normalised too, but moves no moment."""
        h = wide(x)
        anything = h.numel() > 0 and (mask is None or bool(mask.any()))
        if self.training and anything:
            mean, variance = self._moments(h, mask)
        else:
            mean, variance = self.running_mean.to(h.dtype), self.running_var.to(h.dtype)
        h = (h - mean) * torch.rsqrt(variance + self.eps)
        return (h * wide(self.weight) + wide(self.bias)).to(x.dtype)
