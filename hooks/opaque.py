"""The one operator through which everything is observed.

A dispatch mode in the user's forward (selective checkpointing has one) sees every operation that runs
inside it, and its policy may raise or corrupt training on operations that it does not expect. All our
arithmetic therefore runs inside a single opaque operator, below any such mode, and with autocast off,
which would round our products.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stabilitylens.hooks.shares import local

LIBRARY = torch.library.Library("stabilitylens", "DEF")
LIBRARY.define("observe(Tensor[] tensors, int call) -> ()")
_CALLS: dict[int, Callable[..., None]] = {}


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype that autocast computes in on a device; None where it is off or not known there."""
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def precision_of(out: Tensor) -> str | None:
    """What the blocks compute in: autocast's dtype where it is on, else that of their output."""
    dtype = autocast_dtype(out.device.type) or out.dtype
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype)


def _observe(tensors: list[Tensor], call: int) -> None:
    device = tensors[0].device.type
    if autocast_dtype(device) is not None:
        with torch.autocast(device, enabled=False):
            _CALLS[call](*tensors)
    else:
        _CALLS[call](*tensors)


def _observe_fake(tensors: list[Tensor], call: int) -> None:
    return None


LIBRARY.impl("observe", _observe, "CompositeExplicitAutograd")
LIBRARY.impl("observe", _observe_fake, "Meta")


def observe(function: Callable[..., None], *tensors: Tensor) -> None:
    """Run ``function(*tensors)`` inside the opaque operator, without grad; it must not change the tensors.

    Of a tensor that is spread over processes it is given what this one holds.
    """
    call = id(function)
    tensors = tuple(map(local, tensors))
    _CALLS[call] = function
    try:
        with torch.no_grad():
            torch.ops.stabilitylens.observe(tensors, call)
    finally:
        del _CALLS[call]
