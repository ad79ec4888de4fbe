"""QK-Norm: RMSNorm of queries and keys, both in one launch on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens.kernels._byproducts import NOBODY
from stabilitylens.kernels._choice import fits, uses_triton
from stabilitylens.kernels.rms_norm import Rounding, rms_norm_reference


def qk_norm_reference(
    q: Float[Tensor, "*q_row d_q"],
    k: Float[Tensor, "*k_row d_k"],
    q_weight: Float[Tensor, " d_q"],
    k_weight: Float[Tensor, " d_k"],
    eps: float = 1e-6,
    rounding: Rounding = "llama",
) -> tuple[Float[Tensor, "*q_row d_q"], Float[Tensor, "*k_row d_k"]]:
    """In plain PyTorch, one after the other."""
    return rms_norm_reference(q, q_weight, None, eps, rounding), rms_norm_reference(k, k_weight, None, eps, rounding)


def by_stride(x: Tensor) -> tuple[Tensor, list[int]]:
    """The leading axes in the order in which they lie in memory, so that rows need no copy, and the way back."""
    order = sorted(range(x.dim() - 1), key=x.stride, reverse=True)
    back = sorted(range(len(order)), key=lambda axis: order[axis])
    return x.permute(*order, -1), [*back, x.dim() - 1]


def qk_norm(
    q: Float[Tensor, "*q_row d_q"],
    k: Float[Tensor, "*k_row d_k"],
    q_weight: Float[Tensor, " d_q"],
    k_weight: Float[Tensor, " d_k"],
    eps: float = 1e-6,
    rounding: Rounding = "llama",
    *,
    layer: int = NOBODY,
) -> tuple[Float[Tensor, "*q_row d_q"], Float[Tensor, "*k_row d_k"]]:
    """RMSNorm of q and k over their last axes: d_head for a norm per head, all heads' features for a full one.

    Args:
        q: of any strides, before or after RoPE.
        k: likewise.
        q_weight: the gain of q.
        k_weight: that of k.
        eps: added under the root.
        rounding: see ``rms_norm``.
        layer: see ``rms_norm``; the rows of q and of k are both told.
    """
    if not uses_triton(q, k, q_weight, k_weight) or not fits(q, q_weight) or not fits(k, k_weight):
        return qk_norm_reference(q, k, q_weight, k_weight, eps, rounding)
    from stabilitylens.kernels import _qk_norm_op  # noqa: F401  registers the operator
    from stabilitylens.kernels._norm_ops import MODES

    (a, back_a), (b, back_b) = by_stride(q), by_stride(k)
    out: Any = torch.ops.stabilitylens.qk_norm(a, b, q_weight, k_weight, eps, MODES[rounding], layer)
    return out[0].permute(back_a), out[1].permute(back_b)
