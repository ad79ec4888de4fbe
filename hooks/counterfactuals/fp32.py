"""The counterfactual fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.hooks.counterfactuals._functions import Around, mapped_tensors
from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial
from stabilitylens.hooks.functions import Function, named
from stabilitylens.suspects._suspect import DECISIVE

HALF = frozenset({torch.float16, torch.bfloat16})
CASTS = named("half", "bfloat16")


@counterfactual(suspect="fp16-overflow", weight=DECISIVE)
def fp32(trial: Trial) -> None:
    """Compute in fp32 from the snapshot on: autocast is off, weights and moments in 16 bit are fp32, casts to 16 bit do nothing.

    A weight that 16 bit had rounded stays as it was rounded. A gradient scaler goes on scaling, which fp32 stands.
    Where only bf16 was in use, whose range is that of fp32, the verdict says nothing of an overflow of fp16.
    """
    replaced: set[torch.dtype] = set()
    for tensor in [*trial.model.parameters(), *trial.model.buffers()]:
        if tensor.dtype in HALF:
            replaced.add(tensor.dtype)
            _widen(trial, tensor)
    _widen_moments(trial)
    trial.stack.enter_context(Around({}, lambda *call: _in_fp32(replaced, *call)))

    def check() -> None:
        if not replaced:
            raise NotApplicable("nothing was computed in 16 bit")
        if torch.float16 not in replaced:
            trial.suspect = None

    trial.at_end(check)


def _widen(trial: Trial, tensor: Tensor) -> None:
    """Make a weight fp32 in place, and put the one it was back at the end."""
    narrow, gradient = tensor.data, tensor.grad
    tensor.grad = None

    def put_back() -> None:
        tensor.grad = None
        tensor.data = narrow

    trial.stack.callback(put_back)
    tensor.data = narrow.float()
    tensor.grad = None if gradient is None else gradient.float()


def _widen_moments(trial: Trial) -> None:
    for optimizer in trial.optimizers:
        for state in optimizer.state.values():
            state |= {k: v.float() for k, v in state.items() if isinstance(v, Tensor) and v.dtype in HALF}


def _in_fp32(replaced: set[torch.dtype], func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for device in {x.device.type for x in _tensors(args, kwargs)}:
        if torch.is_autocast_enabled(device):
            replaced.add(torch.get_autocast_dtype(device))
            with torch.autocast(device, enabled=False):
                return _in_fp32(replaced, func, args, kwargs)
    if func in CASTS:
        replaced.add(torch.float16 if func is Tensor.half else torch.bfloat16)
        return args[0].float()

    def dtype(value: Any) -> Any:
        if value in HALF:
            replaced.add(value)
            return torch.float32
        return value

    args = tuple(dtype(a) if isinstance(a, torch.dtype) else a for a in args)
    kwargs = {k: dtype(v) if isinstance(v, torch.dtype) else v for k, v in kwargs.items()}
    if not getattr(func, "__name__", "").endswith("_"):  # what is changed in place has to stay the tensor that it is
        args, kwargs = mapped_tensors(args, _wide), mapped_tensors(kwargs, _wide)
    return func(*args, **kwargs)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF and not isinstance(x, nn.Parameter) else x


def _tensors(*values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    mapped_tensors(values, lambda x: found.append(x))
    return found
