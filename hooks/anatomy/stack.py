"""Which module of a model is running."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from stabilitylens.hooks.names import canonical_names


class ModuleStack:
    """Which module of a model is running; by global hooks, so that the model itself bears none."""

    def __init__(self, model: nn.Module, on_exit: Callable[[nn.Module, Any, Any], None]) -> None:
        names = canonical_names(model)
        self._names = {module: names[path] for path, module in model.named_modules()}
        self._running: list[str] = []
        self._on_exit = on_exit
        self._hooks = ExitStack()

    @property
    def top(self) -> str:
        """Path of the innermost running module."""
        return self._running[-1] if self._running else ""

    def __enter__(self) -> Self:
        for handle in (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ):
            self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _enter(self, module: nn.Module, _: Any) -> None:
        if module in self._names:
            self._running.append(self._names[module])

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module in self._names and self._running and self._running[-1] == self._names[module]:
            self._on_exit(module, inputs, output)
            self._running.pop()
