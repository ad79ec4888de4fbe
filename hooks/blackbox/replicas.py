"""Processes that hold the same weights: one snapshot is enough for all of them."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from stabilitylens.hooks.blackbox.snapshot import Snapshot
from stabilitylens.hooks.subject import Subject


def is_replica(subject: Subject) -> bool:
    """Whether every process holds the same weights."""
    return not subject.sharded and any(isinstance(m, DistributedDataParallel) for m in subject.model.modules())


def told_by_the_first(snapshot: Snapshot | None) -> Snapshot | None:
    """What the first process has, on all of them."""
    told = [snapshot]
    torch.distributed.broadcast_object_list(told, src=0)
    return told[0]
