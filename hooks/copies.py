"""A hook that stays with its model: in a copy of the model, or once saved and loaded, it does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """What a hook is in a copy of the model."""


def _silent() -> Callable[..., None]:
    return _nothing


class Hook:
    """Calls a function; copying or pickling it gives one that does nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _silent, ()
