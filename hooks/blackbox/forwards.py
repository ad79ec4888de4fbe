"""Notices each forward of a model in training, before it begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stabilitylens.hooks.copies import BeforeHook
from stabilitylens.hooks.shares import is_rehearsal

Call = Callable[[tuple[Any, ...], dict[str, Any]], object]


class KeywordHook(BeforeHook):
    """A forward pre-hook that is told of keywords too; a copy of it does nothing."""

    def __call__(self, module: Any, args: Any, kwargs: Any = None) -> None:
        """What torch calls before a forward."""
        self._call(module, args, kwargs)


class Forwards:
    """Calls with the arguments of each forward in training.

    Not of one without gradients, of one in evaluation mode once the model has been seen to train, of the recomputation of
    a checkpointed one, or of one inside a compiled graph.
    """

    def __init__(self, model: nn.Module, call: Call) -> None:
        self._call, self._trains = call, model.training
        # before the hooks of wrappers: they gather weights that are spread over processes
        self._handle = model.register_forward_pre_hook(KeywordHook(self._before), prepend=True, with_kwargs=True)

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or getattr(module, "_is_replica", False):
            return
        self._trains = self._trains or module.training
        recomputing = torch._C._current_graph_task_id() != -1
        if torch.is_grad_enabled() and not recomputing and (module.training or not self._trains) and not is_rehearsal():
            self._call(args, kwargs)


def as_called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The inputs of a forward as one batch: the only argument; the keywords; several arguments; or both as a pair."""
    if args and kwargs:
        return (tuple(args), dict(kwargs))
    if kwargs:
        return dict(kwargs)
    return args[0] if len(args) == 1 else tuple(args)


def named_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by the names that the model's forward gives them."""
    inner = model
    while type(inner).__name__ in ("DistributedDataParallel", "OptimizedModule") and isinstance(
        wrapped := getattr(inner, "module", getattr(inner, "_orig_mod", None)), nn.Module
    ):
        inner = wrapped
    bound = inspect.signature(inner.forward).bind(*args, **kwargs)
    named = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named
