"""A snapshot apart: what is this process's alone, and the shards of what is spread over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.sharded import likes, read_shards, shard_as
from stabilitylens.hooks.blackbox.snapshot import Snapshot, named_tensors
from stabilitylens.hooks.optimizers import parameters_of
from stabilitylens.hooks.shares import local


def _at(snapshot: Snapshot, place: str) -> tuple[dict[Any, Any], Any]:
    """The dictionary that holds a place, and its key there."""
    kind, _, name = place.partition(".")
    if kind in ("model", "gradient"):
        return (snapshot.model if kind == "model" else snapshot.gradients), name
    index, _, key = name.partition(".")
    return snapshot.optimizers[int(kind.split()[1])]["state"][int(index)], key


def apart(snapshot: Snapshot, model: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[Snapshot, dict[str, Any]]:
    """The snapshot with None in the place of every shard, and the shards as parts of their wholes."""
    like = likes(snapshot.sharded, named_tensors(model), [parameters_of(o) for o in optimizers])
    shards = {}
    rest = replace(
        snapshot, model=dict(snapshot.model), gradients=dict(snapshot.gradients),
        optimizers=[o | {"state": {i: dict(s) for i, s in o["state"].items()}} for o in snapshot.optimizers],
    )  # fmt: skip
    for place in snapshot.sharded:
        holder, key = _at(rest, place)
        shards[place], holder[key] = shard_as(like[place], holder[key]), None
    return rest, shards


def whole(snapshot: Snapshot, folder: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> Snapshot:
    """The snapshot with its shards read from an incident's folder; all processes have to come where there are any.

    Raises:
        BadInput: the model or an optimizer is not the one that was recorded.
    """
    if not snapshot.sharded:
        return snapshot
    try:
        like = likes(snapshot.sharded, named_tensors(model), [parameters_of(o) for o in optimizers])
    except (KeyError, IndexError) as error:
        raise BadInput(f"the model or the optimizer lacks {error} of the recorded ones; build them as they were") from error
    shards = {p: shard_as(t, torch.zeros_like(local(t.detach()), device="cpu", dtype=snapshot.sharded[p])) for p, t in like.items()}
    read_shards(folder, shards)
    for place, shard in shards.items():
        holder, key = _at(snapshot, place)
        holder[key] = shard.to_local()
    return snapshot
