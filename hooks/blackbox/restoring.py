"""Puts a snapshot back, once it is sure that it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.plain import copied, mapped
from stabilitylens.hooks.blackbox.sharded import shard_as
from stabilitylens.hooks.blackbox.snapshot import Snapshot, named_tensors
from stabilitylens.hooks.names import canonical_names
from stabilitylens.hooks.optimizers import parameters_of
from stabilitylens.hooks.shares import local


@torch.no_grad()
def put_back(
    snapshot: Snapshot, model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Sequence[Any], scaler: Any, *, weights: bool = True
) -> None:
    """Make a training what it was; without ``weights`` all but the parameters, which are what they were, and the optimizers.

    Raises:
        BadInput: the model or an optimizer is not the one that the snapshot was taken of.
    """
    tensors = named_tensors(model)
    check_model(snapshot, tensors)
    check_optimizers(snapshot, optimizers)
    for name, tensor in tensors.items():
        if weights or not isinstance(tensor, nn.Parameter):
            local(tensor).copy_(snapshot.model[name])
        if tensor.is_leaf:
            left = snapshot.gradients.get(name)
            tensor.grad = None if left is None else _placed(snapshot, f"gradient.{name}", left, tensor)
    for i, optimizer in enumerate(optimizers if weights else ()):
        _put_back_optimizer(snapshot, i, optimizer)
    for scheduler, state in zip(schedulers, snapshot.others["schedulers"], strict=False):
        scheduler.load_state_dict(mapped(state, copied))
    if scaler is not None and snapshot.others["scaler"] is not None:
        numbers = {k: v.item() if isinstance(v, Tensor) else v for k, v in snapshot.others["scaler"].items()}
        scaler.load_state_dict(numbers)
        scaler._per_optimizer_states.clear()
    names, evaluating = canonical_names(model), set(snapshot.others["evaluating"])
    for path, module in model.named_modules():
        module.training = names[path] not in evaluating


def _placed(snapshot: Snapshot, place: str, saved: Tensor, like: Tensor, on_host: bool = False) -> Tensor:
    """A copy of a saved tensor where it belongs: on the parameter's device, as a shard where it was one."""
    copy = saved.to("cpu" if on_host else like.device, copy=True)
    return shard_as(like, copy) if place in snapshot.sharded else copy


def _put_back_optimizer(snapshot: Snapshot, number: int, optimizer: Optimizer) -> None:
    state = snapshot.optimizers[number]
    on_host = {tuple(entry) for entry in state["on_host"]}
    optimizer.state.clear()
    for i, parameter in enumerate(parameters_of(optimizer)):
        if i in state["state"]:
            optimizer.state[parameter] = {
                k: _placed(snapshot, f"optimizer {number}.{i}.{k}", v, parameter, (i, k) in on_host)
                if isinstance(v, Tensor)
                else mapped(v, copied)
                for k, v in state["state"][i].items()
            }
    for group, saved in zip(optimizer.param_groups, state["groups"], strict=True):
        set_group(group, {k: v for k, v in saved.items() if k != "params"})


def set_group(group: dict[str, Any], values: dict[str, Any]) -> None:
    """Make a parameter group's learning rate and the like what they were; a tensor stays the tensor that it is."""
    for key, value in values.items():
        if isinstance(group.get(key), Tensor):
            with torch.no_grad():
                group[key].copy_(value if isinstance(value, Tensor) else torch.tensor(value))
        else:
            group[key] = copied(value)


def check_model(snapshot: Snapshot, tensors: dict[str, Tensor]) -> None:
    """Say how a model differs from the one that was recorded.

    Raises:
        BadInput: it does.
    """
    theirs = snapshot.model
    for name in [*theirs, *tensors]:
        if name not in tensors:
            raise BadInput(f"the model has no {name}, which the recorded one has; build the model that was trained")
        if name not in theirs:
            raise BadInput(f"the model has {name}, which the recorded one has not; build the model that was trained")
        there, here = tuple(theirs[name].shape), tuple(local(tensors[name]).shape)
        if there != here:
            raise BadInput(f"{name} has shape {here}, and {there} in the recorded model; build the model that was trained")


def check_optimizers(snapshot: Snapshot, optimizers: Sequence[Optimizer]) -> None:
    """Say how optimizers differ from the recorded ones.

    Raises:
        BadInput: they do.
    """
    there, here = ([[g["params"] for g in s["groups"]] for s in snapshot.optimizers],
                   [[len(g["params"]) for g in o.param_groups] for o in optimizers])  # fmt: skip
    if there != here:
        raise BadInput(
            f"the optimizer has parameter groups of {here} parameters, and of {there} in the recorded training; "
            "build it as it was, with the same groups in the same order"
        )
