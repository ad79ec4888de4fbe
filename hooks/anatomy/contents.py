"""What an object holds, kept so that it can be put back into the same object, in the same order."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import is_
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch

PutBack = Callable[[], None]

_ABSENT = object()
_CODE = (ModuleType, FunctionType, type)


def keep_list(value: Any) -> tuple[PutBack, list[Any]]:
    """Of a list or a deque, and of what is derived from them."""
    kind = list if isinstance(value, list) else deque
    saved = list(kind.__iter__(value))

    def put_back() -> None:
        if len(value) == len(saved) and all(map(is_, kind.__iter__(value), saved)):
            return
        kind.clear(value)
        kind.extend(value, saved)

    return put_back, saved


def keep_set(value: set[Any]) -> tuple[PutBack, list[Any]]:
    """Of a set."""
    saved = list(set.__iter__(value))

    def put_back() -> None:
        if len(value) != len(saved) or not all(item in value for item in saved):
            set.clear(value)
            set.update(value, saved)

    return put_back, saved


def keep_dict(value: dict[Any, Any]) -> tuple[PutBack, list[Any]]:
    """Of a dictionary of any kind; only what changed is written."""
    kind = OrderedDict if isinstance(value, OrderedDict) else dict
    saved = dict(kind.items(value))

    def put_back() -> None:
        for key in [key for key in kind.__iter__(value) if key not in saved]:
            kind.__delitem__(value, key)
        for key, item in saved.items():
            if dict.get(value, key, _ABSENT) is not item:
                kind.__setitem__(value, key, item)
        if not all(map(is_, kind.__iter__(value), saved)):
            kind.clear(value)
            for key, item in saved.items():
                kind.__setitem__(value, key, item)

    return put_back, list(saved.values())


def keep_slots(value: Any) -> tuple[PutBack, list[Any]] | None:
    """Of an object's slots; None where it has none."""
    slots = [slot for cls in type(value).__mro__ for slot in vars(cls).values() if type(slot) is MemberDescriptorType]
    if not slots:
        return None
    saved = [(slot, _read(slot, value)) for slot in slots]

    def put_back() -> None:
        for slot, item in saved:
            if _read(slot, value) is not item:
                with suppress(AttributeError, TypeError):  # what is read only was not written
                    slot.__delete__(value) if item is _ABSENT else slot.__set__(value, item)

    return put_back, [item for _, item in saved if item is not _ABSENT]


def _read(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value, type(value))
    except AttributeError:
        return _ABSENT


def keep_class(cls: type) -> tuple[PutBack, list[Any]]:
    """Of the attributes of a class."""
    saved = _attributes(cls)

    def put_back() -> None:
        now = _attributes(cls)
        for name in now.keys() | saved.keys():
            item = saved.get(name, _ABSENT)
            if now.get(name, _ABSENT) is not item:
                with suppress(AttributeError, TypeError):  # a class that takes no attributes was given none
                    type.__delattr__(cls, name) if item is _ABSENT else type.__setattr__(cls, name, item)

    return put_back, list(saved.values())


def _attributes(cls: type) -> dict[str, Any]:
    return {name: item for name, item in vars(cls).items() if not (name.startswith("__") and name.endswith("__"))}


def keep_names(names: dict[str, Any], wanted: Iterable[str], *, new: bool) -> tuple[PutBack, list[Any]]:
    """Of what names of a file are bound to; what was loaded meanwhile, as by a late import, stays.

    Args:
        names: the file's.
        wanted: which.
        new: whether to unbind those that were not bound.
    """
    saved = {name: item for name in wanted if new or name in names for item in [names.get(name, _ABSENT)]}

    def put_back() -> None:
        for name, item in saved.items():
            now = names.get(name, _ABSENT)
            if now is item or isinstance(now, _CODE):
                continue
            if item is _ABSENT:
                del names[name]
            else:
                names[name] = item

    return put_back, [item for item in saved.values() if item is not _ABSENT]


def keep_cell(cell: Any) -> tuple[PutBack, list[Any]] | None:
    """Of a variable of an enclosing function; None where nothing is assigned yet."""
    try:
        saved = cell.cell_contents
    except ValueError:
        return None

    def put_back() -> None:
        cell.cell_contents = saved

    return put_back, [saved]


def keep_numbers(value: Any) -> PutBack:
    """Of an array of NumPy or of bytes."""
    saved = value.copy()

    def put_back() -> None:
        if isinstance(value, bytearray):
            value[:] = saved
        elif value.flags.writeable and value.shape == saved.shape:
            value[...] = saved

    return put_back


def keep_randoms(value: Any) -> PutBack | None:
    """Of a random generator; None where it is none, or has no state."""
    if isinstance(value, torch.Generator):
        return _set_state(value, value.get_state())
    if isinstance(value, np.random.RandomState):
        legacy = value.get_state(legacy=False)
        return lambda: value.set_state(legacy)
    if isinstance(value, np.random.Generator | np.random.BitGenerator):
        bits = value.bit_generator if isinstance(value, np.random.Generator) else value
        state = bits.state
        return lambda: setattr(bits, "state", state)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        own = value.getstate()
        return lambda: value.setstate(own)
    return None


def _set_state(generator: torch.Generator, state: torch.Tensor) -> PutBack:
    def put_back() -> None:
        generator.set_state(state)

    return put_back
