"""Notices each forward in training before it begins, from wherever the loop calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from stabilitylens.hooks.copies import AfterHook, BeforeHook
from stabilitylens.hooks.shares import is_rehearsal

#: wrappers whose forward takes what that of the wrapped model takes
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "OptimizedModule")
Call = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], object]


class KeywordHook(BeforeHook):
    """A forward pre-hook that is told of keywords too; a copy of it does nothing."""

    def __call__(self, module: Any, args: Any, kwargs: Any = None) -> None:
        """What torch calls before a forward."""
        self._call(module, args, kwargs)


class Forwards:
    """Calls with the arguments of each forward in training, of the outermost module that runs.

    Not of one without gradients, of one in evaluation mode once a model has been seen to train, of the recomputation of
    a checkpointed one, or of one inside a compiled graph.

    Args:
        holders: the model, and the modules between it and its blocks, for a loop may call one of these.
        call: given the module and its arguments.
    """

    def __init__(self, holders: Iterable[nn.Module], call: Call) -> None:
        self._call, self._trains = call, False
        self._open: nn.Module | None = None
        self._handles = []
        for holder in holders:
            self._trains = self._trains or holder.training
            # before the hooks of wrappers: they gather weights that are spread over processes
            self._handles.append(holder.register_forward_pre_hook(KeywordHook(self._before), prepend=True, with_kwargs=True))
            self._handles.append(holder.register_forward_hook(AfterHook(self._after), always_call=True))

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or getattr(module, "_is_replica", False):
            return
        if self._open not in (None, module):  # the same one: a forward that was interrupted never ended
            return
        self._trains = self._trains or module.training
        recomputing = torch._C._current_graph_task_id() != -1
        if torch.is_grad_enabled() and not recomputing and (module.training or not self._trains) and not is_rehearsal():
            self._open = module
            self._call(module, args, kwargs)

    def _after(self, module: nn.Module, _args: Any, _out: Any) -> None:
        if not torch.compiler.is_compiling() and self._open is module:
            self._open = None


def as_called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The inputs of a forward as one batch: the only argument; the keywords; several arguments; or both as a pair."""
    if args and kwargs:
        return (tuple(args), dict(kwargs))
    if kwargs:
        return dict(kwargs)
    return args[0] if len(args) == 1 else tuple(args)


def named_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """All arguments by the names that the model's forward gives them; None where it takes some as ``*args``, without names."""
    inner = model
    while type(inner).__name__ in _WRAPPERS and isinstance(
        wrapped := getattr(inner, "module", getattr(inner, "_orig_mod", None)), nn.Module
    ):
        inner = wrapped
    bound = inspect.signature(inner.forward).bind(*args, **kwargs)
    named = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL and named.get(name):
            return None
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named
