r"""LayerNorm: $y = w \odot (x - \mu) / \sqrt{\sigma^2 + \varepsilon} + b$ over the last axis.

Ba, Kiros and Hinton 2016 (https://arxiv.org/abs/1607.06450); $\sigma^2$ is the biased variance.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from stabilitylens.kernels._byproducts import NOBODY
from stabilitylens.kernels._choice import added, fits, uses_triton


def layer_norm_reference(
    x: Float[Tensor, "*row d"],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*row d"]:
    """PyTorch's own, which computes in fp32 and rounds once."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def _as_pytorch_takes(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether PyTorch's own takes these dtypes: parameters in that of x, or in fp32."""
    kinds = {p.dtype for p in parameters if p is not None}
    return kinds <= {x.dtype} or kinds == {torch.float32}


def layer_norm(
    x: Float[Tensor, "*row d"],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-5,
    *,
    layer: int = NOBODY,
    cast: bool = True,
) -> Float[Tensor, "*row d"]:
    """LayerNorm over the last axis: the Triton kernel on a GPU, PyTorch's own elsewhere; see ``rms_norm`` for ``layer`` and ``cast``."""
    if not uses_triton(x, weight, bias) or not fits(x, weight, bias) or not _as_pytorch_takes(x, weight, bias):
        return layer_norm_reference(x, weight, bias, eps)
    from stabilitylens.kernels._norm_ops import MODES

    operator = torch.ops.stabilitylens.layer_norm if cast else torch.ops.stabilitylens.layer_norm_kept
    y: Tensor = operator(x, None, weight, bias, eps, MODES["layer"], layer)[0]
    return y


def add_layer_norm(
    x: Float[Tensor, "*row d"],
    residual: Float[Tensor, "..."],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-5,
    *,
    round_sum: bool = True,
    layer: int = NOBODY,
) -> tuple[Float[Tensor, "*sum d"], Float[Tensor, "*sum d"]]:
    """LayerNorm of x + residual, and that sum; see ``add_rms_norm``."""
    from stabilitylens.kernels import _norm_ops as ops

    mode = ops.MODES["layer"] + (0 if round_sum else ops.UNROUNDED)
    pair = added(x, residual)
    if not uses_triton(x, residual, weight, bias) or pair is None or not fits(pair[0], weight, bias) or not _as_pytorch_takes(x, weight, bias):
        return ops.reference(x, residual, weight, bias, eps, mode)
    y, total, _, _ = torch.ops.stabilitylens.layer_norm(*pair, weight, bias, eps, mode, layer)
    return y, total
