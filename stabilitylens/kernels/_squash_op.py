"""DyT and Derf as operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stabilitylens.kernels._byproducts import backward_rows, forward_rows, in_backward, listening
from stabilitylens.kernels._norm_ops import LIBRARY
from stabilitylens.kernels.squash import squash_reference

LIBRARY.define("squash(Tensor x, Tensor alpha, Tensor? shift, Tensor weight, Tensor? bias, bool erf, bool fast, int layer) -> Tensor")
LIBRARY.define(
    "squash_backward(Tensor grad, Tensor x, Tensor alpha, Tensor? shift, Tensor weight, bool erf, bool fast, int layer) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)


def _forward(
    x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor | None, erf: bool, fast: bool, layer: int
) -> Tensor:
    from stabilitylens.kernels._gpu.squash_launch import forward

    listener = None if in_backward() else listening(layer)
    y, found = forward(x, alpha, shift, weight, bias, erf, fast, listener is not None)
    if listener and found is not None:
        for tap, row in zip(("norm_input", "norm_output"), forward_rows(found, x.numel()), strict=True):
            listener.add(tap, row)  # type: ignore[arg-type]
    return y


def _backward(
    grad: Tensor, x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor, erf: bool, fast: bool, layer: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from stabilitylens.kernels._gpu.squash_launch import backward

    listener = listening(layer)
    *grads, found = backward(grad, x, alpha, shift, weight, erf, fast, listener is not None)
    if listener and found is not None:
        for tap, row in zip(("norm_output_grad", "norm_input_grad"), backward_rows(found, x.numel()), strict=True):
            listener.add(tap, row)  # type: ignore[arg-type]
    dx, dw, db, scalars = grads
    return dx, dw, db, scalars


def _backward_fake(
    grad: Tensor, x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor, erf: bool, fast: bool, layer: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dw = x.new_empty(x.shape[-1], dtype=torch.float32)
    return x.new_empty(x.shape), dw, torch.empty_like(dw), dw.new_empty(2)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.erf, ctx.fast, ctx.layer = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, alpha, shift, weight, bias = tensors = ctx.saved_tensors
    if torch.is_grad_enabled():
        given = [t for t in tensors if t is not None and t.requires_grad]
        y = squash_reference(x, "erf" if ctx.erf else "tanh", alpha, shift, weight, bias)
        found = dict(zip(map(id, given), torch.autograd.grad(y, given, grad, create_graph=True), strict=True))
        return *(None if t is None else found.get(id(t)) for t in tensors), None, None, None
    dx, dw, db, scalars = torch.ops.stabilitylens.squash_backward(grad, x, alpha, shift, weight, ctx.erf, ctx.fast, ctx.layer)
    d_alpha = scalars[0].to(alpha.dtype).view_as(alpha)
    d_shift = None if shift is None else scalars[1].to(shift.dtype).view_as(shift)
    return dx, d_alpha, d_shift, dw.to(weight.dtype), None if bias is None else db.to(bias.dtype), None, None, None


for _device in ("CUDA", "CPU"):
    LIBRARY.impl("squash", _forward, _device)
    LIBRARY.impl("squash_backward", _backward, _device)
torch.library.register_fake("stabilitylens::squash", lambda x, *_: x.new_empty(x.shape), lib=LIBRARY)
torch.library.register_fake("stabilitylens::squash_backward", _backward_fake, lib=LIBRARY)
torch.library.register_autograd("stabilitylens::squash", _differentiate, setup_context=_setup, lib=LIBRARY)
