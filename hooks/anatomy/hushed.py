"""The hooks that people put on a model do not hear of a reading; those without which it can't run stay."""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn

_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_ALL = tuple(n for n in vars(torch.nn.modules.module) if n.startswith("_global_") and n.endswith("_hooks"))
_NEEDED = ("torch.distributed.", "torch.nn.utils.", "torch.ao.")  # they gather shards, compute weights, quantize
_INSTALLED = ("site-packages", "dist-packages")


@contextmanager
def hushed(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Take hooks off, and put them back in their order on leaving.

    What stays is torch's own, the model's own (bound methods of its modules), and what the installed package put there
    that the model is from, as transformers does to collect hidden states.
    """
    is_needed = _needed_by(modules)
    tables = [(module.__dict__, name) for module in modules for name in _OF_MODULES if module.__dict__.get(name)]
    before = [(attributes, name, attributes[name]) for attributes, name in tables]
    everywhere = [(table, list(table.items())) for name in _OF_ALL if (table := getattr(torch.nn.modules.module, name))]
    try:
        for attributes, name, table in before:
            attributes[name] = OrderedDict((key, hook) for key, hook in table.items() if is_needed(hook))
        for table, hooks in everywhere:
            _fill(table, [(key, hook) for key, hook in hooks if is_needed(hook)])
        yield
    finally:
        for attributes, name, table in before:
            attributes[name] = table
        for table, hooks in everywhere:
            _fill(table, hooks)


def _needed_by(modules: Sequence[nn.Module]) -> Callable[[Any], bool]:
    own = {id(module) for module in modules}
    packages = {_package(cls.__module__) for kind in {type(m) for m in modules} for cls in kind.__mro__}
    installed = {package for package in packages - {"torch"} if _is_installed(package)}

    def is_needed(hook: Any) -> bool:
        while isinstance(hook, functools.partial):
            hook = hook.func
        if isinstance(hook, MethodType) and id(hook.__self__) in own:
            return True
        home = getattr(hook, "__module__", None) or ""
        return home.startswith(_NEEDED) or _package(home) in installed

    return is_needed


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_installed(package: str) -> bool:
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return any(folder in file for folder in _INSTALLED)


def _fill(table: dict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    table.clear()
    table.update(items)
