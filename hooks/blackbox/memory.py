"""What the snapshots of a training take, in words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from stabilitylens.hooks.blackbox.options import BlackBox
from stabilitylens.hooks.optimizers import parameters_of


def memory_of(options: BlackBox, model: nn.Module, optimizers: Sequence[Optimizer]) -> str:
    """Bytes of weights and of the state of Adam, and where they are."""
    weights = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    trained = sum(p.nbytes for o in optimizers for p in parameters_of(o))
    disk = options.snapshot == "disk"
    times, place = ("", "of host memory while one is written, and twice that on disk") if disk else ("2 × ", "of host memory")
    return (
        f"the black box takes a snapshot every {options.snapshot_every} steps: {times}{weights / 1e6:.1f} MB of weights and, "
        f"with Adam, {times}{2 * trained / 1e6:.1f} MB of optimizer state {place}"
    )
