"""The optimizers that step a model's parameters: those that the lens was told of, and those that come later."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from stabilitylens.hooks.guard import Guard, guarded

_LISTENING: list[tuple[weakref.ref[Any], RemovableHandle]] = []


@dataclass(frozen=True)
class Calls:
    """What is called: before and after each step, as torch's hooks are, and when an optimizer came later.

    Attributes:
        adopt: called with the newcomer before its first step, and with those in whose place it steps.
        busy: whether one that is known is stepping, so that what steps inside it is a part of it.
    """

    before: Callable[..., Any]
    after: Callable[..., Any]
    adopt: Callable[[Optimizer, Sequence[Optimizer]], object]
    busy: Callable[[], bool]


class Steppers:
    """Listens to the optimizers that are known, and to all others for as long as they own none of the model's parameters.

    Args:
        model: whose parameters count.
        known: those that are observed; newcomers are added, and those that own nothing beside a newcomer's parameters go.
    """

    def __init__(self, model: nn.Module, known: list[Optimizer], calls: Calls, guard: Guard) -> None:
        self._model, self._known, self._calls, self.guard = model, known, calls, guard
        self._handles = {id(o): self._listen(o) for o in known}
        self._foreign: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        _sweep()
        self._to_all = register_optimizer_step_pre_hook(torch.compiler.disable(_weakly(self)))
        _LISTENING.append((weakref.ref(self), self._to_all))

    def remove(self) -> None:
        """Listen no longer."""
        self._to_all.remove()
        self._ignore(list(self._handles))

    @guarded("looking for optimizers that came later")
    def before(self, optimizer: Optimizer) -> None:
        """Some optimizer is about to step; for one that is known this is one look-up."""
        if id(optimizer) in self._handles or self._foreign.get(optimizer) == len(optimizer.param_groups) or self._calls.busy():
            return
        theirs = _owned(optimizer)
        if theirs.isdisjoint(map(id, self._model.parameters())):
            self._foreign[optimizer] = len(optimizer.param_groups)
            return
        gone = [o for o in self._known if _owned(o) <= theirs]
        self._known[:] = [*(o for o in self._known if o not in gone), optimizer]
        self._ignore(map(id, gone))
        self._handles[id(optimizer)] = self._listen(optimizer)
        self._calls.adopt(optimizer, gone)

    def _listen(self, optimizer: Optimizer) -> tuple[RemovableHandle, RemovableHandle]:
        """A step that is compiled would have what listens to it compiled as well."""
        before, after = map(torch.compiler.disable, (self._calls.before, self._calls.after))
        return optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)

    def _ignore(self, keys: Iterable[int]) -> None:
        for key in keys:
            for handle in self._handles.pop(key):
                handle.remove()


def adopted(optimizer: Optimizer, gone: Sequence[Optimizer]) -> str:
    """A clause that says what has happened."""
    place = f" in place of {', '.join(type(o).__name__ for o in gone)}" if gone else ""
    return f"an optimizer ({type(optimizer).__name__}) steps parameters of the model{place}"


def _owned(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _weakly(steppers: Steppers) -> Callable[..., None]:
    """The hook, which torch keeps for ever where a lens is forgotten and not closed: it keeps nothing alive."""
    me = weakref.ref(steppers)

    def before_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if (found := me()) is not None:
            found.before(optimizer)

    return before_step


def _sweep() -> None:
    """Take off the hooks of those that are gone; not when they go, for that may be in the middle of a step."""
    for reference, handle in list(_LISTENING):
        if reference() is None:
            handle.remove()
            _LISTENING.remove((reference, handle))
