"""Puts our function in the place of a foreign one, wherever a module of Python's holds it, for as long as it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from types import FunctionType
from typing import Any

Function = Callable[..., Any]


def _holders(objects: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict:
            yield names
    for one in objects:
        yield one.__dict__


def _original(value: FunctionType) -> Any:
    """What a compiled function was compiled from, else the function itself."""
    inner = value.__dict__.get("_torchdynamo_orig_callable", value)
    return getattr(inner, "__wrapped__", inner) if type(inner) is FunctionType else inner


class Substitutes:
    """Swaps functions for wrappers of them and back.

    Where a name was bound to a function before (``from library import function``, also to its compiled form), it is
    the name that is bound anew, since a function cannot be changed.

    Args:
        wrap: makes the wrapper of a function, called with the function to be wrapped and the one it is known as.
        objects: whose attributes are searched too.
    """

    def __init__(self, wrap: Callable[[Function, Function], Function], objects: Iterable[Any] = ()) -> None:
        self._wrap, self._objects = wrap, list(objects)
        self._places: list[tuple[MutableMapping[str, Any], str, Any, Function]] = []
        self._looked_at = (0, frozenset[int]())

    def look_for(self, functions: Iterable[Function]) -> None:
        """Find every name that is bound to one of these; anew only where modules were imported since."""
        wanted = {id(f): f for f in functions}
        seen = (len(sys.modules), frozenset(wanted))
        if seen == self._looked_at:
            return
        self._looked_at, self._places = seen, []
        if not wanted:
            return
        for names in _holders(self._objects):
            for name, value in list(names.items()):
                if type(value) is FunctionType and id(_original(value)) in wanted:
                    self._places.append((names, name, value, self._wrap(value, _original(value))))

    def put(self) -> None:
        """Bind the names to the wrappers."""
        for names, name, value, wrapper in self._places:
            if names.get(name) is value:
                names[name] = wrapper

    def take_back(self) -> None:
        """Bind them to what they were bound to."""
        for names, name, value, wrapper in self._places:
            if names.get(name) is wrapper:
                names[name] = value
