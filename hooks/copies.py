"""Hooks that stay with their model: in a copy of the model, or once saved and loaded, they do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """What a hook is in a copy of the model."""


def _silent() -> Callable[..., None]:
    return _nothing


class BeforeHook:
    """A forward pre-hook; copying or pickling it gives a function that does nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, module: Any, args: Any) -> None:
        """What torch calls before a forward."""
        self._call(module, args)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _silent, ()


class AfterHook(BeforeHook):
    """A forward hook. It has a signature of its own, so that torch.compile needs not compile one for both kinds."""

    def __call__(self, module: Any, args: Any, out: Any = None) -> None:
        """What torch calls after a forward."""
        self._call(module, args, out)
