r"""RMSNorm: $y = w \odot x / \sqrt{\overline{x^2} + \varepsilon}$, in the rounding mode of the model it stands in.

Zhang and Sennrich 2019 (https://arxiv.org/abs/1910.07467). Models differ in where they round to the
dtype of their input, and a quarter of the elements in bf16 differ by it.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens.kernels._byproducts import NOBODY
from stabilitylens.kernels._choice import added, fits, uses_triton

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
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*row d"]:
    """In plain PyTorch, operation by operation as the models' own code has it; ``dtype`` is what is rounded to, where that is not x's."""
    h, dtype = wide(x), x.dtype if dtype is None else dtype
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if weight is None:
        out = h.to(dtype)
    elif rounding == "llama":
        out = weight * h.to(dtype)
    elif rounding == "gemma":
        out = (h * (1.0 + wide(weight))).to(dtype)
    else:
        out = (wide(weight) * h).to(dtype)
    return out if bias is None else out + bias


def _rounds_alike(x: Tensor, weight: Tensor | None, bias: Tensor | None, rounding: Rounding) -> bool:
    """Whether a bias leaves the dtype that it is added to, as the kernels do."""
    before = torch.promote_types(x.dtype, weight.dtype) if weight is not None and rounding == "llama" else x.dtype
    return bias is None or torch.promote_types(before, bias.dtype) == before


def rms_norm(
    x: Float[Tensor, "*row d"],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-6,
    rounding: Rounding = "llama",
    *,
    layer: int = NOBODY,
    cast: bool = False,
) -> Float[Tensor, "*row d"]:
    """RMSNorm over the last axis: the Triton kernel on a GPU, plain PyTorch elsewhere.

    Args:
        x: fp32, bf16, fp16 (fp64 in PyTorch), of any strides.
        weight: the gain, None for none.
        bias: added last, None for none.
        eps: added under the root.
        rounding: where the result is rounded to the dtype of x.
        layer: a number of ``_byproducts.listen``, whose listener is told the Moments of input, output and gradients.
        cast: under autocast on a GPU compute in fp32 and return it, as PyTorch's own ``rms_norm`` does.
    """
    if not uses_triton(x, weight, bias) or not fits(x, weight, bias) or not _rounds_alike(x, weight, bias, rounding):
        return rms_norm_reference(x, weight, bias, eps, rounding)
    from stabilitylens.kernels._norm_ops import MODES

    operator = torch.ops.stabilitylens.rms_norm_cast if cast else torch.ops.stabilitylens.rms_norm
    y: Tensor = operator(x, None, weight, bias, eps, MODES[rounding], layer)[0]
    return y


def add_rms_norm(
    x: Float[Tensor, "*row d"],
    residual: Float[Tensor, "..."],
    weight: Float[Tensor, " d"] | None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-6,
    rounding: Rounding = "llama",
    *,
    round_sum: bool = True,
    layer: int = NOBODY,
) -> tuple[Float[Tensor, "*sum d"], Float[Tensor, "*sum d"]]:
    """RMSNorm of x + residual, and that sum: one pass over memory on a GPU.

    Args:
        x: as in ``rms_norm``.
        residual: of the same dtype, and of a shape that broadcasts with that of x.
        weight: as in ``rms_norm``, as are the others.
        bias: added last.
        eps: added under the root.
        rounding: see ``rms_norm``.
        layer: see ``rms_norm``.
        round_sum: normalise the sum as rounded to the dtype of x, as models do that add first; or as it is in fp32.
    """
    from stabilitylens.kernels import _norm_ops as ops

    mode = ops.MODES[rounding] + (0 if round_sum else ops.UNROUNDED)
    pair = added(x, residual)
    if not uses_triton(x, residual, weight, bias) or pair is None or not fits(pair[0], weight, bias) or not _rounds_alike(x, weight, bias, rounding):
        return ops.reference(x, residual, weight, bias, eps, mode)
    y, total, _, _ = torch.ops.stabilitylens.rms_norm(*pair, weight, bias, eps, mode, layer)
    return y, total
