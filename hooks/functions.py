"""Sees every torch function that the observed forward calls, and changes none of them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stabilitylens.hooks.guard import Guard

Function = Callable[..., Any]
#: called with (function, args, kwargs) before the function runs
Before = Callable[[Function, tuple[Any, ...], dict[str, Any]], None]
#: called with (function, args, kwargs, result) after it has run
After = Callable[[Function, tuple[Any, ...], dict[str, Any], Any], None]


def named(*names: str) -> frozenset[Function]:
    """Every spelling of some torch functions: ``torch.x``, ``F.x``, ``Tensor.x``, and what a wrapper in its place calls."""
    homes = (torch, F, Tensor)
    found = [f for home in homes for name in names if (f := getattr(home, name, None)) is not None]
    return frozenset(found) | frozenset(map(inspect.unwrap, found))


def _transparent(function: types.FunctionType) -> Function:
    """A copy of a Python function of torch whose body a mode can see: its own override check is off."""
    off = {n: (lambda *_a, **_k: False) for n in function.__globals__ if n.startswith("has_torch_function")}
    copy = types.FunctionType(
        function.__code__, function.__globals__ | off, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


Watcher = TypeVar("Watcher")


def merged(*tables: dict[Function, Watcher]) -> dict[Function, list[Watcher]]:
    """All watchers of each function, in the order of the tables."""
    out: dict[Function, list[Watcher]] = {}
    for table in tables:
        for function, watcher in table.items():
            out.setdefault(function, []).append(watcher)
    return out


class FunctionWatch(TorchFunctionMode):
    """Calls the watchers registered for a function around it.

    ``F.multi_head_attention_forward`` hides its body from a mode, so a copy of it runs that does the same
    operations with the check for overrides switched off.

    Args:
        guard: what a watcher raises is counted there and goes no further.
        before, after: watchers by function.
        always: watchers of whatever function has run, before those of ``after``.
        heads: told the number of heads while a multi-head attention runs, then None.
    """

    def __init__(
        self,
        guard: Guard,
        before: dict[Function, list[Before]],
        after: dict[Function, list[After]],
        heads: Callable[[int | None], None],
        always: tuple[After, ...] = (),
    ) -> None:
        super().__init__()
        self.guard, self._before, self._after, self._heads, self._always = guard, before, after, heads, always

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._multi_head(args, kwargs)
        for before in self._before.get(func, ()):
            self._call(before, func, args, kwargs)
        result = func(*args, **kwargs)
        for always in self._always:
            self._call(always, func, args, kwargs, result)
        for after in self._after.get(func, ()):
            self._call(after, func, args, kwargs, result)
        return result

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Not on the stack of modes, as if nobody watched: for functions that are compiled for the modes around them."""
        on_top = torch.overrides._get_current_function_mode() is self
        if on_top:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            if on_top:
                self.__enter__()  # type: ignore[no-untyped-call]

    def _call(self, watcher: Function, func: Function, *rest: Any) -> None:
        try:
            watcher(func, *rest)
        except Exception as error:
            self.guard.failed(f"watching {getattr(func, '__name__', func)}", error)

    def _multi_head(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._heads(args[4] if len(args) > 4 else kwargs.get("num_heads"))
        try:
            with self:
                return _transparent(F.multi_head_attention_forward)(*args, **kwargs)  # type: ignore[arg-type]
        finally:
            self._heads(None)
