r"""DyT and Derf: $y = w \odot f(\alpha x + s) + b$ with f = tanh (and s = 0) or erf.

Zhu et al. 2025 (https://arxiv.org/abs/2503.10622) and Chen et al. 2025 (https://arxiv.org/abs/2512.10938).
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens.kernels._byproducts import NOBODY
from stabilitylens.kernels._choice import fits, uses_triton
from stabilitylens.kernels.rms_norm import wide

Function = Literal["tanh", "erf"]


def squash_reference(
    x: Float[Tensor, "*row d"],
    function: Function,
    alpha: Float[Tensor, ""],
    shift: Float[Tensor, ""] | None,
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"] | None,
) -> Float[Tensor, "*row d"]:
    """In plain PyTorch: in fp32, rounded once to the dtype of x."""
    h = wide(alpha) * wide(x)
    h = h if shift is None else h + wide(shift)
    out = wide(weight) * (torch.tanh(h) if function == "tanh" else torch.erf(h))
    return (out if bias is None else out + wide(bias)).to(x.dtype)


def squash(
    x: Float[Tensor, "*row d"],
    function: Function,
    alpha: Float[Tensor, ""],
    shift: Float[Tensor, ""] | None,
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"] | None,
    *,
    approximate: bool = False,
    layer: int = NOBODY,
) -> Float[Tensor, "*row d"]:
    """DyT (``tanh``) or Derf (``erf``): the Triton kernel on a GPU, plain PyTorch elsewhere.

    Args:
        x: of any strides.
        function: f.
        alpha: multiplies x.
        shift: added to that, None for none.
        weight: the gain.
        bias: added last, None for none.
        approximate: on NVIDIA's GPUs with 16-bit outputs, the hardware's tanh, and erf by tanh(1.1297 x + 0.0998 x³), which errs by
            at most 2.8e-4.
        layer: see ``rms_norm``.
    """
    if not uses_triton(x, alpha, shift, weight, bias) or not fits(x, weight, bias, scalars=(alpha, shift)):
        return squash_reference(x, function, alpha, shift, weight, bias)
    from stabilitylens.kernels import _squash_op  # noqa: F401  registers the operator

    fast = approximate and x.element_size() == 2 and torch.version.hip is None
    y: Tensor = torch.ops.stabilitylens.squash(x, alpha, shift, weight, bias, function == "erf", fast, layer)
    return y
