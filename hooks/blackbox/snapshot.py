"""Everything that a training step starts from, copied to the host, and put back to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from stabilitylens.hooks.blackbox.plain import Keeping, mapped
from stabilitylens.hooks.blackbox.sharded import is_spread
from stabilitylens.hooks.names import canonical_names
from stabilitylens.hooks.optimizers import parameters_of
from stabilitylens.hooks.shares import local

_ENDLESS = 1 << 62


@dataclass
class Snapshot:
    """The state before a step.

    Attributes:
        step: the step that starts from it.
        model: parameters and buffers by canonical name, each once.
        gradients: those that were there before the step began, as a loop leaves them that clears them later or not all.
        optimizers: of each the state by parameter's index, which of it lay on the host, and the parameter groups.
        others: state of the schedulers and of the gradient scaler, and the modules that were in evaluation mode.
        sharded: places of tensors that are spread over processes, of which this is one's shard, with their dtypes.
        left_out: what could not be kept, by place.
    """

    step: int
    model: dict[str, Tensor]
    gradients: dict[str, Tensor]
    optimizers: list[dict[str, Any]]
    others: dict[str, Any]
    sharded: dict[str, torch.dtype]
    left_out: dict[str, str]

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(t.nbytes for t in tensors_of([self.model, self.gradients, self.optimizers, self.others]))


def gradients_of(model: nn.Module) -> dict[str, tuple[Tensor, TensorWeakRef]]:
    """The parameters that have a gradient, and that one, which nothing is to keep alive."""
    return {name: (p, TensorWeakRef(p.grad)) for name, p in named_tensors(model).items() if p.is_leaf and p.grad is not None}


def tensors_of(value: Any) -> list[Tensor]:
    """Every tensor in plain data."""
    found: list[Tensor] = []
    mapped(value, lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None)
    return found


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each once, by the name that no wrapper changes."""
    names = canonical_names(model)
    return {names[path]: t for some in (model.named_parameters(), model.named_buffers()) for path, t in some}


@torch.no_grad()
def take(
    step: int, model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Sequence[Any], scaler: Any,
    reuse: Snapshot | None = None,
) -> Snapshot:  # fmt: skip
    """Copy the state to the host; on a device that runs ahead nothing waits for it.

    Args:
        step: the step that is about to begin.
        model: its parameters and buffers are copied.
        optimizers: their state is.
        schedulers: so is theirs.
        scaler: and that of the gradient scaler; None without one.
        reuse: an older snapshot whose memory may be written over.
    """
    keeping, names = _Copying(reuse), canonical_names(model)
    weights = {name: keeping.tensor(f"model.{name}", t) for name, t in named_tensors(model).items()}
    left = {name: p.grad for name, p in named_tensors(model).items() if p.is_leaf and p.grad is not None}
    gradients = {name: keeping.tensor(f"gradient.{name}", g) for name, g in left.items()}
    states = [_optimizer(keeping, f"optimizer {i}", o) for i, o in enumerate(optimizers)]
    plain = Keeping(_ENDLESS)
    others = {
        "schedulers": [plain.take(s.state_dict(), f"scheduler {i}") for i, s in enumerate(schedulers)],
        "scaler": None if scaler is None else plain.take(scaler_state(scaler), "scaler"),
        "evaluating": [names[path] for path, m in model.named_modules() if not m.training],
    }
    return Snapshot(step, weights, gradients, states, others, keeping.sharded, keeping.left_out | plain.left_out)


class _Copying:
    """Copies tensors to the host, into the memory of an older snapshot where that fits."""

    def __init__(self, reuse: Snapshot | None) -> None:
        self._old: dict[str, Tensor] = {}
        for place, some in (("model", reuse.model), ("gradient", reuse.gradients)) if reuse is not None else ():
            self._old |= {f"{place}.{name}": t for name, t in some.items()}
        for i, state in enumerate(reuse.optimizers if reuse is not None else ()):
            self._old |= {f"optimizer {i}.{p}.{k}": v for p, s in state["state"].items() for k, v in s.items()}
        self.left_out: dict[str, str] = {}
        self.sharded: dict[str, torch.dtype] = {}

    def tensor(self, place: str, tensor: Tensor) -> Tensor:
        if is_spread(tensor):
            self.sharded[place] = tensor.dtype
        source = local(tensor).detach()
        old = self._old.get(place)
        if isinstance(old, Tensor) and (old.shape, old.dtype, old.stride()) == (source.shape, source.dtype, source.stride()):
            return old.copy_(source, non_blocking=source.device.type == "cuda")
        pinned = source.device.type == "cuda"
        return torch.empty_like(source, device="cpu", pin_memory=pinned).copy_(source, non_blocking=pinned)

    def value(self, place: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.tensor(place, value)
        plain = Keeping(_ENDLESS)
        taken = plain.take(value, place)
        self.left_out |= plain.left_out
        return taken


def _optimizer(keeping: _Copying, place: str, optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer by the index of its parameters, with the names of what does not lie where they do."""
    state: dict[int, dict[str, Any]] = {}
    on_host: list[tuple[int, str]] = []
    for i, parameter in enumerate(parameters_of(optimizer)):
        own = optimizer.state.get(parameter)
        if own:
            state[i] = {k: keeping.value(f"{place}.{i}.{k}", v) for k, v in own.items()}
            on_host += [(i, k) for k, v in own.items() if isinstance(v, Tensor) and v.device != parameter.device]
    return {"state": state, "on_host": on_host, "groups": [group_of(keeping, place, g) for g in optimizer.param_groups]}


def group_of(keeping: _Copying, place: str, group: dict[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters, and how many those are."""
    return {k: keeping.value(f"{place} group.{k}", v) for k, v in group.items() if k != "params"} | {"params": len(group["params"])}


def scaler_state(scaler: Any) -> dict[str, Any]:
    """The state of a gradient scaler, its tensors copied where they lie, so that nothing waits for a device."""
    scale, tracker = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
    if not isinstance(scale, Tensor) or not isinstance(tracker, Tensor) or not scaler.is_enabled():
        return dict(scaler.state_dict())
    return {
        "scale": scale.detach(), "_growth_tracker": tracker.detach(), "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(), "growth_interval": scaler.get_growth_interval(),
    }  # fmt: skip
