"""Notices when the model's own forward begins and ends, from wherever the loop calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stabilitylens.hooks.copies import AfterHook, BeforeHook
from stabilitylens.hooks.guard import Guard
from stabilitylens.hooks.shares import is_rehearsal
from stabilitylens.hooks.subject import Subject, is_compiled
from stabilitylens.hooks.taps import ForwardTaps


class Entry:
    """Hooks on the modules that hold the blocks; the outermost one that runs opens the taps.

    These are the only hooks that stay on the model. Between sampled steps each costs one test.
    A forward without grad (generation, evaluation) is not observed, nor one in eval mode once the model
    has been seen to train, nor the recomputation of a checkpointed forward, nor the copies that ``nn.DataParallel``
    runs in threads, all at a time.
    """

    def __init__(self, subject: Subject, taps: ForwardTaps, wanted: Callable[[], bool], guard: Guard) -> None:
        self._model, self._taps, self._wanted, self.guard = subject.model, taps, wanted, guard
        self._open_at: nn.Module | None = None
        self._by_hand = nn.Module()
        self._trains = subject.model.training
        self._handles = []
        for holder in subject.holders:
            self._handles.append(holder.register_forward_pre_hook(BeforeHook(self._enter)))
            self._handles.append(holder.register_forward_hook(AfterHook(self._leave), always_call=True))

    def remove(self) -> None:
        """Take the hooks off, and close the taps if an interrupted forward left them open."""
        self._close()
        for handle in self._handles:
            handle.remove()

    def open(self) -> None:
        """A loop is about to call parts of the model itself, which no forward of a module holds together."""
        self._enter(self._by_hand, ())

    def close(self) -> None:
        """It has done so."""
        self._leave(self._by_hand, (), None)

    def _close(self) -> None:
        if self._open_at is not None:
            self._open_at = None
            self._taps.__exit__()

    def _enter(self, module: nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling() or not self._wanted() or getattr(module, "_is_replica", False):
            return
        try:
            if is_compiled(self._model):  # a function mode would have every compiled part compiled anew
                return
            if self._open_at is module:  # a forward that was interrupted by the keyboard never left
                self._close()
            self._trains = self._trains or self._model.training
            recomputing = torch._C._current_graph_task_id() != -1
            observed = torch.is_grad_enabled() and not recomputing and (self._model.training or not self._trains)
            if self._open_at is None and observed and not is_rehearsal():
                self._open_at = module
                self._taps.__enter__()
        except Exception as error:
            self.guard.failed("the beginning of a forward", error)

    def _leave(self, module: nn.Module, _args: Any, _out: Any) -> None:
        if torch.compiler.is_compiling() or self._open_at is not module:
            return
        try:
            self._close()
        except Exception as error:
            self.guard.failed("the end of a forward", error)
