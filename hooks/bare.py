"""A copy of a model without memory, hooks and wrappers, on which nothing that runs can reach another process."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called", "_state_dict_hooks", "_load_state_dict_pre_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


class UnknownShapes(ValueError):
    """The shapes of whole parameters can't be told from what a process holds."""


def bare_copy(model: nn.Module) -> nn.Module:
    """The model on the meta device, every parameter whole.

    What shards parameters or communicates by hooks, or by another class (FSDP2), is left out. A shared module stays
    shared and so does a tied parameter. The model itself is not touched.

    Raises:
        UnknownShapes: parameters are kept in flat parts of which no shape is known (FSDP1).
    """
    return _module(model, {}, {})


def _module(module: nn.Module, done: dict[int, nn.Module], tensors: dict[int, Tensor]) -> nn.Module:
    if isinstance(module, DistributedDataParallel):
        return _module(module.module, done, tensors)
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
