"""Follows the module calls of an observed forward, without a hook on any module.

A hook on a module inside ``nn.TransformerEncoderLayer`` would switch off torch's fused encoder and so
change what the model computes; hooks for all modules, installed for the length of the forward, do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from stabilitylens.hooks.guard import Guard


@runtime_checkable
class Listener(Protocol):
    """Told of every module call; ``name`` is canonical."""

    def enter(self, module: nn.Module, name: str, args: tuple[Any, ...]) -> None:
        """A module is about to run."""

    def leave(self, module: nn.Module, name: str, args: tuple[Any, ...], out: Any) -> None:
        """A module has run."""


def main_tensor(out: Any) -> Tensor | None:
    """The hidden state in what a module returned: the first floating-point tensor of two dimensions or more."""
    if isinstance(out, Tensor):
        return out if out.is_floating_point() and out.dim() >= 2 else None
    return next((t for t in map(main_tensor, _parts(out)) if t is not None), None)


def _parts(out: Any) -> Iterable[Any]:
    if isinstance(out, Mapping):
        return out.values()
    if is_dataclass(out):
        return (getattr(out, field.name) for field in fields(out))
    return out if isinstance(out, (tuple, list)) else ()


def may_run_fused(module: nn.Module) -> bool:
    """Whether torch may run this module as one fused kernel, which a function mode would prevent."""
    if module.training or not isinstance(module, (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)):
        return False
    return not torch.is_grad_enabled() or not any(p.requires_grad for p in module.parameters())


class ModuleCalls:
    """Tells a listener of each call of a known module, and keeps the stack of their names.

    Args:
        names: canonical name of each module of the model.
    """

    def __init__(self, names: dict[nn.Module, str], listener: Listener, guard: Guard) -> None:
        self._names, self._listener, self.guard = names, listener, guard
        self._handles: list[RemovableHandle] = []
        self._stack: list[tuple[nn.Module, Any]] = []
        self.fused: set[str] = set()

    @property
    def current(self) -> str:
        """Name of the innermost module that is running."""
        return self._names[self._stack[-1][0]] if self._stack else ""

    def __enter__(self) -> ModuleCalls:
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        while self._stack:
            self._pop()

    def _pop(self) -> None:
        _, unseen = self._stack.pop()
        if unseen is not None:
            unseen.__exit__(None, None, None)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        name = self._names.get(module)
        if name is None:
            return
        self._guarded(self._listener.enter, module, name, args)
        unseen = None
        if may_run_fused(module):
            self.fused.add(name)
            unseen = torch._C.DisableTorchFunction()
            unseen.__enter__()
        self._stack.append((module, unseen))

    def _after(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if not any(entry[0] is module for entry in self._stack):
            return
        while self._stack[-1][0] is not module:
            self._pop()
        self._pop()
        self._guarded(self._listener.leave, module, self._names[module], args, out)

    def _guarded(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:
            self.guard.failed("following a module call", error)
