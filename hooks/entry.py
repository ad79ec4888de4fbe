"""Notices when the model's own forward begins and ends, from wherever the loop calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stabilitylens.hooks.guard import Guard
from stabilitylens.hooks.subject import Subject
from stabilitylens.hooks.taps import ForwardTaps


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """What a hook is in a copy of the model."""


def _silent() -> Callable[..., None]:
    return _nothing


class _Hook:
    """A hook that stays with this model: in a copy, or once saved and loaded, it does nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _silent, ()


class Entry:
    """Hooks on the modules that hold the blocks; the outermost one that runs opens the taps.

    These are the only hooks that stay on the model. Between sampled steps each costs one test.
    A forward without grad (generation, evaluation) is not observed, nor one in eval mode once the model
    has been seen to train, nor the recomputation of a checkpointed forward.
    """

    def __init__(self, subject: Subject, taps: ForwardTaps, wanted: Callable[[], bool], guard: Guard) -> None:
        self._model, self._taps, self._wanted, self.guard = subject.model, taps, wanted, guard
        self._open_at: nn.Module | None = None
        self._trains = subject.model.training
        self._handles = []
        for holder in subject.holders:
            self._handles.append(holder.register_forward_pre_hook(_Hook(self._enter)))
            self._handles.append(holder.register_forward_hook(_Hook(self._leave), always_call=True))

    def remove(self) -> None:
        """Take the hooks off, and close the taps if an interrupted forward left them open."""
        self._close()
        for handle in self._handles:
            handle.remove()

    def _close(self) -> None:
        if self._open_at is not None:
            self._open_at = None
            self._taps.__exit__()

    def _enter(self, module: nn.Module, _args: Any) -> None:
        if not self._wanted() or torch.compiler.is_compiling():
            return
        try:
            if self._open_at is module:  # a forward that was interrupted by the keyboard never left
                self._close()
            self._trains = self._trains or self._model.training
            recomputing = torch._C._current_graph_task_id() != -1
            observed = torch.is_grad_enabled() and not recomputing and (self._model.training or not self._trains)
            if self._open_at is None and observed:
                self._open_at = module
                self._taps.__enter__()
        except Exception as error:
            self.guard.failed("the beginning of a forward", error)

    def _leave(self, module: nn.Module, _args: Any, _out: Any) -> None:
        if self._open_at is not module:
            return
        try:
            self._close()
        except Exception as error:
            self.guard.failed("the end of a forward", error)
