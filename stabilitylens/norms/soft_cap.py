"""Soft caps on logits."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.kernels.rms_norm import wide


class SoftCap(nn.Module):
    r"""Keeps logits between −c and c.

    Formula: $y = c \tanh(x / c)$.
    Source: Bello et al. 2016, https://arxiv.org/abs/1611.09940; Gemma 2, https://arxiv.org/abs/2408.00118.
    Defaults: none; Gemma 2 takes 50 for attention and 30 for the output.
    Known failure: saturated logits pass no gradient, and what makes them grow goes on unseen; fused attention often lacks it.

    Args:
        cap: c, above 0.
    """

    def __init__(self, cap: float) -> None:
        super().__init__()
        if not cap > 0:
            raise BadInput(f"a soft cap must be above 0, not {cap}")
        self.cap = cap

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Cap each logit."""
        return (self.cap * torch.tanh(wide(x) / self.cap)).to(x.dtype)
