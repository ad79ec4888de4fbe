"""LayerNorm and RMSNorm as operators: what torch.compile, autograd and autocast need to know of them.

``mode`` is 0 for LayerNorm, else 1, 2, 3 for RMSNorm in the rounding modes fp32, llama, gemma; 4 more where
the sum with a residual is normalised before it is rounded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stabilitylens.kernels._byproducts import backward_rows, forward_rows, in_backward, listening
from stabilitylens.kernels.layer_norm import layer_norm_reference
from stabilitylens.kernels.rms_norm import Rounding, rms_norm_reference, wide

MODES: dict[str, int] = {"layer": 0, "fp32": 1, "llama": 2, "gemma": 3}
_ROUNDINGS: tuple[Rounding, ...] = ("fp32", "llama", "gemma")
UNROUNDED = 4
LIBRARY = torch.library.Library("stabilitylens", "FRAGMENT")
_IN = "Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float eps, int mode, int layer"
_OUT = "(Tensor, Tensor, Tensor, Tensor)"
#: operators by whether autocast has them compute in fp32 and return it, as it does PyTorch's own; others stay in the dtype of their input
CAST, KEPT = ("layer_norm", "rms_norm_cast"), ("layer_norm_kept", "rms_norm")
for _name in (*CAST, *KEPT):
    LIBRARY.define(f"{_name}({_IN}) -> {_OUT}")
LIBRARY.define(
    "norm_backward(Tensor grad, Tensor? grad_sum, Tensor x, Tensor? weight, bool has_bias, Tensor mean, Tensor rstd, "
    "int mode, int layer) -> (Tensor, Tensor, Tensor)"
)


def _mode(mode: int) -> Any:
    from stabilitylens.kernels._gpu.norm import Mode

    kind = mode % UNROUNDED
    return Mode(kind == 0, max(0, kind - 1), mode < UNROUNDED)


def _forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, mode: int, layer: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from stabilitylens.kernels._gpu.norm import forward

    listener = None if in_backward() else listening(layer)
    out = forward(x, residual, weight, bias, eps, _mode(mode), listener is not None)
    if listener and out.statistics is not None:
        for tap, row in zip(("norm_input", "norm_output"), forward_rows(out.statistics, x.numel()), strict=True):
            listener.add(tap, row)  # type: ignore[arg-type]
    return out.y, out.total, out.mean, out.rstd


def _fake(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, mode: int, layer: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    llama = mode % UNROUNDED == MODES["llama"] and weight is not None
    dtype = torch.promote_types(x.dtype, weight.dtype) if llama and weight is not None else x.dtype
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    flat = x.new_empty(rows, dtype=torch.float32)
    y = x.new_empty(x.shape, dtype=dtype)
    total = x.new_empty(0) if residual is None else x.new_empty(x.shape)
    return y, total, flat if mode % UNROUNDED == 0 else x.new_empty(0, dtype=torch.float32), flat.clone()


def _backward(
    grad: Tensor, grad_sum: Tensor | None, x: Tensor, weight: Tensor | None, has_bias: bool, mean: Tensor, rstd: Tensor, mode: int, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    from stabilitylens.kernels._gpu.norm import backward

    listener = listening(layer)
    out = backward(grad, grad_sum, x, weight, has_bias, mean, rstd, _mode(mode), listener is not None)
    if listener and out.statistics is not None:
        for tap, row in zip(("norm_output_grad", "norm_input_grad"), backward_rows(out.statistics, x.numel()), strict=True):
            listener.add(tap, row)  # type: ignore[arg-type]
    empty = x.new_empty(0, dtype=torch.float32)
    return out.dx, empty if out.dw is None else out.dw, empty.clone() if out.db is None else out.db


def _backward_fake(
    grad: Tensor, grad_sum: Tensor | None, x: Tensor, weight: Tensor | None, has_bias: bool, mean: Tensor, rstd: Tensor, mode: int, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (0 if weight is None else x.shape[-1], x.shape[-1] if has_bias else 0)
    return x.new_empty(x.shape), *(x.new_empty(n, dtype=torch.float32) for n in sizes)  # type: ignore[return-value]


def reference(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, mode: int) -> tuple[Tensor, Tensor]:
    """The normalised tensor and the sum that was normalised, in plain PyTorch."""
    kind, total = mode % UNROUNDED, x if residual is None else x + residual
    h = total if mode < UNROUNDED or residual is None else wide(x) + wide(residual)
    if kind:
        return rms_norm_reference(h, weight, bias, eps, _ROUNDINGS[kind - 1], total.dtype), total
    if h is total:
        return layer_norm_reference(h, weight, bias, eps), total
    w, b = (None if t is None else wide(t) for t in (weight, bias))
    return layer_norm_reference(h, w, b, eps).to(total.dtype), total


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, bias, ctx.eps, ctx.mode, ctx.layer = inputs
    _, total, mean, rstd = output
    ctx.added = residual is not None
    ctx.save_for_backward(total if ctx.added else x, weight, bias, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)


def _differentiate_again(ctx: Any, grad: Tensor, grad_sum: Tensor | None) -> tuple[Any, ...]:
    """Gradients that can be differentiated themselves."""
    h, weight, bias, _, _ = ctx.saved_tensors
    given = [t for t in (h, weight, bias) if t is not None and t.requires_grad]
    y, _ = reference(h, None, weight, bias, ctx.eps, ctx.mode % UNROUNDED)
    found = dict(zip(map(id, given), torch.autograd.grad(y, given, grad, create_graph=True), strict=True))
    dh, dw, db = (None if t is None else found.get(id(t)) for t in (h, weight, bias))
    dh = grad_sum if dh is None else dh if grad_sum is None else dh + grad_sum
    return dh, dh if ctx.added else None, dw, db, None, None, None


def _differentiate(ctx: Any, grad: Tensor | None, grad_sum: Tensor | None, *_: Any) -> tuple[Any, ...]:
    h, weight, bias, mean, rstd = ctx.saved_tensors
    if not ctx.added:
        grad_sum = None
    if grad is None:
        return grad_sum, grad_sum if ctx.added else None, None, None, None, None, None
    if torch.is_grad_enabled():
        return _differentiate_again(ctx, grad, grad_sum)
    dx, dw, db = torch.ops.stabilitylens.norm_backward(grad, grad_sum, h, weight, bias is not None, mean, rstd, ctx.mode, ctx.layer)
    dw, db = (None if t is None else g.to(t.dtype) for t, g in ((weight, dw), (bias, db)))
    return dx, dx if ctx.added else None, dw, db, None, None, None


for _name in (*CAST, *KEPT):
    for _device in ("CUDA", "CPU"):
        LIBRARY.impl(_name, _forward, _device)
    torch.library.register_fake(f"stabilitylens::{_name}", _fake, lib=LIBRARY)
    torch.library.register_autograd(f"stabilitylens::{_name}", _differentiate, setup_context=_setup, lib=LIBRARY)
for _device in ("CUDA", "CPU"):
    LIBRARY.impl("norm_backward", _backward, _device)
torch.library.register_fake("stabilitylens::norm_backward", _backward_fake, lib=LIBRARY)
for _name in CAST:
    torch.library.register_autocast(f"stabilitylens::{_name}", "cuda", torch.float32, lib=LIBRARY)
