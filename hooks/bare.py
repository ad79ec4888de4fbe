"""A copy of a model without memory, hooks and wrappers, on which nothing that runs can reach another process."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called", "_state_dict_hooks", "_load_state_dict_pre_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


_REGISTERED = ("_parameters", "_buffers", "_modules")
_MANY = 10_000  # modules in a list


class UnknownShapes(ValueError):
    """The shapes of whole parameters can't be told from what a process holds."""


def bare_copy(model: nn.Module) -> nn.Module:
    """The model on the meta device, every parameter whole.

    What shards parameters or communicates by hooks, or by another class (FSDP2), is left out. A shared module stays
    shared and so does a tied parameter; attributes that refer to its modules and weights refer to the copies. The model
    itself is not touched; other objects are its own, which :func:`read_anatomy` leaves as they were.

    Raises:
        UnknownShapes: parameters are kept in flat parts of which no shape is known (FSDP1).
    """
    done: dict[int, nn.Module] = {}
    tensors: dict[int, Tensor] = {}
    copy = _module(model, done, tensors)
    copies = done | tensors
    for module in done.values():
        attributes = module.__dict__
        attributes.update({n: _pointed(v, copies) for n, v in attributes.items() if n not in _REGISTERED})
    return copy


def _pointed(value: Any, done: Mapping[int, nn.Module | Tensor], depth: int = 3) -> Any:
    """The same with copies for what was copied: an attribute may be a module or a weight, a list of them, or a bound method."""
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, MethodType):
        owner = _pointed(value.__self__, done, 0)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if isinstance(value, functools.partial):
        function, args, keywords = (_pointed(part, done, depth) for part in (value.func, value.args, value.keywords))
        same = function is value.func and args is value.args and keywords is value.keywords
        return value if same else functools.partial(function, *args, **keywords)
    if depth and type(value) in (list, tuple, dict) and len(value) <= _MANY:
        parts = list(value.values() if isinstance(value, dict) else value)
        pointed = [_pointed(part, done, depth - 1) for part in parts]
        if any(new is not old for new, old in zip(pointed, parts, strict=True)):
            return dict(zip(value, pointed, strict=True)) if isinstance(value, dict) else type(value)(pointed)
    return value


def _module(module: nn.Module, done: dict[int, nn.Module], tensors: dict[int, Tensor]) -> nn.Module:
    if isinstance(module, DistributedDataParallel):
        done[id(module)] = _module(module.module, done, tensors)
        return done[id(module)]
    if type(module).__name__ == "FullyShardedDataParallel":
        raise UnknownShapes("FSDP1 keeps its parameters in flat parts, of which no shape is known")
    if id(module) in done:
        return done[id(module)]
    copy: nn.Module = object.__new__(_plain_class(module))
    done[id(module)] = copy
    state = dict(module.__dict__)
    state.update({name: OrderedDict() for name in _HOOKS if name in state})
    state["_parameters"] = {n: None if p is None else _tensor(p, tensors) for n, p in module._parameters.items()}
    state["_buffers"] = {n: None if b is None else _tensor(b, tensors) for n, b in module._buffers.items()}
    state["_modules"] = {n: None if m is None else _module(m, done, tensors) for n, m in module._modules.items()}
    copy.__dict__.update(state)
    return copy


def _plain_class(module: nn.Module) -> type:
    """The class that a module had before FSDP2 gave it one of its own."""
    given = type(module)
    mixed_in = len(given.__bases__) > 1 and given.__bases__[0].__name__ in ("FSDPModule", "ReplicateModule")
    return given.__bases__[1] if mixed_in else given


def _tensor(tensor: Tensor, tensors: dict[int, Tensor]) -> Tensor:
    if id(tensor) not in tensors:
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        whole = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
        tensors[id(tensor)] = whole
    return tensors[id(tensor)]
