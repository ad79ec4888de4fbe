"""Run a model and leave it as it was."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_CONTAINERS = (list, dict, set, OrderedDict)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode, and on leaving restore flags, attributes, buffers and random state.

    Args:
        model: its modules' own ``train`` and ``eval`` are not called, as they may do more than set a flag.
    """
    modules = list(model.modules())
    before = [(module.__dict__, _copies(module)) for module in modules]
    buffers = [(b, b._version, b.detach().clone()) for b in model.buffers()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            for module in modules:
                module.training = False
            torch.backends.mha.set_fastpath_enabled(False)
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            _reshard(modules)
            for attributes, saved in before:
                _restore(attributes, saved)
            for buffer, version, value in buffers:
                _rewrite(buffer, version, value)


def _reshard(modules: Iterable[nn.Module]) -> None:
    """Let FSDP2 put its own parameters back, so that it knows which ones are in place."""
    loaded = sys.modules.get("torch.distributed.fsdp")  # slow to import, and there where it is used
    for module in modules:
        if loaded is not None and isinstance(module, loaded.FSDPModule):
            module.reshard()


def _copies(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Each attribute with a shallow copy of what it holds, where it is a plain container."""
    return {
        name: (value, value.copy() if type(value) in _CONTAINERS else None)
        for name, value in module.__dict__.items()
    }


def _restore(attributes: dict[str, Any], saved: dict[str, tuple[Any, Any]]) -> None:
    for name in attributes.keys() - saved.keys():
        del attributes[name]
    for name, (value, content) in saved.items():
        attributes[name] = value
        if content is not None:
            value.clear()
            (value.extend if type(value) is list else value.update)(content)


def _rewrite(buffer: Tensor, version: int, value: Tensor) -> None:
    if buffer._version != version:
        with torch.no_grad():
            buffer.copy_(value)
