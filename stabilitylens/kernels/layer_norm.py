r"""LayerNorm: $y = w \odot (x - \mu) / \sqrt{\sigma^2 + \varepsilon} + b$ over the last axis.

Ba, Kiros and Hinton 2016 (https://arxiv.org/abs/1607.06450); $\sigma^2$ is the biased variance.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def layer_norm_reference(
    x: Float[Tensor, "*row d"],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*row d"]:
    """PyTorch's own, which computes in fp32 and rounds once."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)
