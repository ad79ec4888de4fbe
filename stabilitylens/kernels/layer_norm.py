r"""LayerNorm: $y = w \odot (x - \mu) / \sqrt{\sigma^2 + \varepsilon} + b$ over the last axis.

Ba, Kiros and Hinton 2016 (https://arxiv.org/abs/1607.06450); $\sigma^2$ is the biased variance.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from stabilitylens.kernels._byproducts import NOBODY
from stabilitylens.kernels._choice import uses_triton


def layer_norm_reference(
    x: Float[Tensor, "*row d"],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*row d"]:
    """PyTorch's own, which computes in fp32 and rounds once."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def layer_norm(
    x: Float[Tensor, "*row d"],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-5,
    *,
    layer: int = NOBODY,
) -> Float[Tensor, "*row d"]:
    """LayerNorm over the last axis: the Triton kernel on a GPU, PyTorch's own elsewhere; see ``rms_norm`` for ``layer``."""
    if not uses_triton(x, weight, bias):
        return layer_norm_reference(x, weight, bias, eps)
    from stabilitylens.kernels._norm_ops import MODES

    y: Tensor = torch.ops.stabilitylens.layer_norm(x, None, weight, bias, eps, MODES["layer"], layer)[0]
    return y


def add_layer_norm(
    x: Float[Tensor, "*row d"],
    residual: Float[Tensor, "*row d"],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-5,
    *,
    round_sum: bool = True,
    layer: int = NOBODY,
) -> tuple[Float[Tensor, "*row d"], Float[Tensor, "*row d"]]:
    """LayerNorm of x + residual, and that sum; see ``add_rms_norm``."""
    from stabilitylens.kernels import _norm_ops as ops

    mode = ops.MODES["layer"] + (0 if round_sum else ops.UNROUNDED)
    if not uses_triton(x, residual, weight, bias):
        return ops.reference(x, residual, weight, bias, eps, mode)
    y, total, _, _ = torch.ops.stabilitylens.layer_norm(x, residual, weight, bias, eps, mode, layer)
    return y, total
