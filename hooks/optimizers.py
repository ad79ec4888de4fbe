"""What optimizers and gradient scalers tell, without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Hooked = tuple[tuple[Any, ...], dict[str, Any]]


def unwrapped(optimizer: Any) -> Any:
    """The optimizer whose own step runs hooks, inside whatever wraps it; one that has no such thing is given back.

    Wrappers of other libraries (Accelerate, Lightning) look like an optimizer, but never set up its hooks.
    """
    inner = optimizer
    while (own := getattr(inner, "__dict__", {})) and "_optimizer_step_pre_hooks" not in own:
        inner = own.get("optimizer", own.get("_optimizer"))
    return inner if own else optimizer


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Those that an optimizer updates, in the order of its groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def after_closure(call: Callable[[], object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hooked | None:
    """Call now, or once the closure that an optimizer's step was given has computed its gradients.

    Args:
        args, kwargs: of the step; the first argument is the optimizer.

    Returns:
        What a step pre-hook returns: None, or the arguments with the closure replaced by one that does the same
        and then calls.
    """
    given = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(given):
        call()
        return None
    waiting = [call]

    def closure(*a: Any, **k: Any) -> Any:
        out = given(*a, **k)
        if waiting:
            waiting.pop()()
        return out

    return ((args[0], closure, *args[2:]), kwargs) if len(args) > 1 else (args, kwargs | {"closure": closure})


def highest_rate(optimizers: Iterable[Optimizer], so_far: Tensor | float | None = None) -> Tensor | float:
    """The highest learning rate of all parameter groups; NaN without any. It stays a tensor where one is."""
    rates = [g["lr"] for o in optimizers for g in o.param_groups if "lr" in g]
    rates += [] if so_far is None else [so_far]
    tensors = [r for r in rates if isinstance(r, Tensor)]
    if not tensors:
        return max(map(float, rates), default=float("nan"))
    device = tensors[0].device
    return torch.stack([torch.as_tensor(r, dtype=torch.float64).reshape(()).to(device) for r in rates]).max()
