"""QK-Norm as an operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stabilitylens.kernels._byproducts import forward_rows, in_backward, listening
from stabilitylens.kernels._norm_ops import _ROUNDINGS, LIBRARY, _fake, _mode
from stabilitylens.kernels.rms_norm import rms_norm_reference

LIBRARY.define(
    "qk_norm(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, float eps, int mode, int layer) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _forward(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, mode: int, layer: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from stabilitylens.kernels._gpu.pair import pair
    from stabilitylens.kernels._gpu.shapes import matrix

    listener = None if in_backward() else listening(layer)
    outs = pair(matrix(q), matrix(k), q_weight, k_weight, eps, _mode(mode), listener is not None)
    for out, x in zip(outs, (q, k), strict=True):
        if listener and out.statistics is not None:
            for tap, row in zip(("norm_input", "norm_output"), forward_rows(out.statistics, x.numel()), strict=True):
                listener.add(tap, row)  # type: ignore[arg-type]
    a, b = outs
    return a.y.view(q.shape), b.y.view(k.shape), a.rstd, b.rstd


def _pair_fake(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, mode: int, layer: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, b = (_fake(x, None, w, None, eps, mode, layer) for x, w in ((q, q_weight), (k, k_weight)))
    return a[0], b[0], a[3], b[3]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, q_weight, k_weight, ctx.eps, ctx.mode, ctx.layer = inputs
    ctx.save_for_backward(q, k, q_weight, k_weight, *output[2:])
    ctx.mark_non_differentiable(*output[2:])


def _one(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if torch.is_grad_enabled():
        given = [t for t in (x, weight) if t.requires_grad]
        y = rms_norm_reference(x, weight, None, ctx.eps, _ROUNDINGS[ctx.mode - 1])
        found = dict(zip(map(id, given), torch.autograd.grad(y, given, grad, create_graph=True), strict=True))
        return found.get(id(x)), found.get(id(weight))
    dx, dw, _ = torch.ops.stabilitylens.norm_backward(
        grad, None, x, weight, False, rstd.new_empty(0), rstd, ctx.mode, ctx.layer
    )
    return dx, dw.to(weight.dtype)


def _differentiate(ctx: Any, grad_q: Tensor, grad_k: Tensor, *_: Any) -> tuple[Any, ...]:
    q, k, q_weight, k_weight, rstd_q, rstd_k = ctx.saved_tensors
    dq, dwq = _one(ctx, grad_q, q, q_weight, rstd_q)
    dk, dwk = _one(ctx, grad_k, k, k_weight, rstd_k)
    return dq, dk, dwq, dwk, None, None, None


for _device in ("CUDA", "CPU"):
    LIBRARY.impl("qk_norm", _forward, _device)
torch.library.register_fake("stabilitylens::qk_norm", _pair_fake, lib=LIBRARY)
torch.library.register_autograd("stabilitylens::qk_norm", _differentiate, setup_context=_setup, lib=LIBRARY)
