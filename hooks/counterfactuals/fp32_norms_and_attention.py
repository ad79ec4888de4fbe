"""The counterfactual fp32_norms_and_attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.hooks.counterfactuals._functions import Around, mapped_tensors
from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial
from stabilitylens.hooks.counterfactuals.fp32 import HALF
from stabilitylens.hooks.functions import Function, named
from stabilitylens.hooks.opaque import autocast_dtype
from stabilitylens.suspects._suspect import FAIR

NORMS = named("layer_norm", "rms_norm", "group_norm", "instance_norm", "native_layer_norm", "softmax", "log_softmax")
PRODUCTS = named("scaled_dot_product_attention")


@counterfactual(suspect="fp16-overflow", weight=FAIR)
def fp32_norms_and_attention(trial: Trial) -> None:
    """Compute norms, softmax and scaled dot-product attention in fp32 from the snapshot on; what they return has its dtype again.

    Their sums and exponentials leave the range of 16 bit first: <https://arxiv.org/abs/1710.03740>. A norm that is spelled
    out is known by its module: its class is called a norm, and its parameters are vectors.
    """
    changed: list[bool] = []

    def wide(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return in_fp32(lambda *a, **k: func(*a, **k), args, kwargs, changed, func in PRODUCTS)

    trial.stack.enter_context(Around(dict.fromkeys(NORMS | PRODUCTS, wide)))
    for module in trial.model.modules():
        if is_norm(module):
            _around(trial, module, changed)

    def check() -> None:
        if not changed:
            raise NotApplicable("no norm, softmax or attention was computed in 16 bit")

    trial.at_end(check)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm by its name and its parameters."""
    return "norm" in type(module).__name__.lower() and all(p.dim() <= 1 for p in module.parameters())


def _around(trial: Trial, module: nn.Module, changed: list[bool]) -> None:
    """Have a module's forward done in fp32 until the end of the trial."""
    own = module.__dict__.get("forward")
    forward = module.forward
    module.forward = lambda *args, **kwargs: in_fp32(forward, args, kwargs, changed, False)

    def put_back() -> None:
        if own is None:
            del module.forward
        else:
            module.forward = own

    trial.stack.callback(put_back)


def in_fp32(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], changed: list[bool], narrow: bool) -> Any:
    """Call something in fp32; ``changed`` is added to where that changes anything.

    ``narrow`` says that autocast has it in 16 bit, whatever it is given.
    """
    tensors: list[Tensor] = []
    mapped_tensors((args, kwargs), tensors.append)
    device = tensors[0].device.type if tensors else "cpu"
    cast = autocast_dtype(device) if narrow else None
    halves = [x.dtype for x in tensors if x.dtype in HALF]
    if not halves and cast not in HALF:
        return call(*args, **kwargs)
    changed.append(True)
    dtype = cast if cast is not None else halves[0]
    wide: Callable[[Tensor], Tensor] = lambda x: x.float() if x.dtype in HALF else x  # noqa: E731
    with torch.autocast(device, enabled=False):
        out = call(*mapped_tensors(args, wide), **{k: v for k, v in mapped_tensors(kwargs, wide).items() if v not in HALF})
    return mapped_tensors(out, lambda x: x.to(dtype) if x.dtype is torch.float32 else x)
