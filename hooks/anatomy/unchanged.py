"""Run a model and leave it as it was, with all that its forward writes to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from stabilitylens.hooks.anatomy.hushed import hushed
from stabilitylens.hooks.anatomy.reach import Reach
from stabilitylens.hooks.anatomy.values import Values
from stabilitylens.hooks.blackbox.randoms import put_back, random_state

_CPU = torch.device("cpu")


@contextmanager
def unchanged(model: nn.Module) -> Iterator[Values]:
    """Put the model into eval mode without hooks, and on leaving restore it.

    That is flags, attributes, containers and objects that they hold, what the code of its classes names in its file,
    weights, buffers and random states; each in place.

    Args:
        model: its modules' own ``train`` and ``eval`` are not called, as they may do more than set a flag.

    Yields:
        The mode to run it under, which notices writes to its weights.
    """
    modules = list(model.modules())
    reach = Reach(modules)
    values = Values(model.parameters(), model.buffers(), reach.tensors)
    randoms = random_state(_CPU)
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    fast_path, casts_kept = torch.backends.mha.get_fastpath_enabled(), torch.is_autocast_cache_enabled()
    with torch.random.fork_rng(devices=devices), ExitStack() as after:
        # the last is the first to be put back, and one that fails keeps none of the others
        after.callback(put_back, randoms, _CPU)
        after.callback(values.put_back)
        after.callback(reach.put_back)
        after.callback(_reshard, modules)
        after.callback(torch.set_autocast_cache_enabled, casts_kept)
        after.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        for module in modules:
            module.training = False
        torch.backends.mha.set_fastpath_enabled(False)
        torch.set_autocast_cache_enabled(False)  # a weight that is cast without gradients would be cast for good
        with hushed(reach.modules):
            yield values


def _reshard(modules: Iterable[nn.Module]) -> None:
    """Let FSDP2 put its own parameters back, so that it knows which ones are in place."""
    loaded = sys.modules.get("torch.distributed.fsdp")  # slow to import, and there where it is used
    for module in modules:
        if loaded is not None and isinstance(module, loaded.FSDPModule):
            module.reshard()
