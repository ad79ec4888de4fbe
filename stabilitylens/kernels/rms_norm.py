r"""RMSNorm: $y = w \odot x / \sqrt{\overline{x^2} + \varepsilon}$, in the rounding mode of the model it stands in.

Zhang and Sennrich 2019 (https://arxiv.org/abs/1910.07467). Models differ in where they round to the
dtype of their input, and a quarter of the elements in bf16 differ by it.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

#: ``llama`` rounds x̂, then multiplies by w; ``gemma`` multiplies by 1 + w in fp32, then rounds; ``fp32`` by w, then rounds
Rounding = Literal["llama", "gemma", "fp32"]


def wide(x: Tensor) -> Tensor:
    """In fp32, or in fp64 where it is in fp64."""
    return x if x.dtype is torch.float64 else x.float()


def rms_norm_reference(
    x: Float[Tensor, "*row d"],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-6,
    rounding: Rounding = "llama",
) -> Float[Tensor, "*row d"]:
    """In plain PyTorch, operation by operation as the models' own code has it."""
    h = wide(x)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if weight is None:
        out = h.to(x.dtype)
    elif rounding == "llama":
        out = weight * h.to(x.dtype)
    elif rounding == "gemma":
        out = (h * (1.0 + wide(weight))).to(x.dtype)
    else:
        out = (wide(weight) * h).to(x.dtype)
    return out if bias is None else out + bias
