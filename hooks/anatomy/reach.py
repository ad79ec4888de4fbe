"""All that a model's forward may write to, found from its modules' attributes and from the code of their classes."""

from __future__ import annotations

import argparse
import dis
import functools
import sys
import types
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from stabilitylens.hooks.anatomy import contents
from stabilitylens.hooks.anatomy.contents import PutBack

DEPTH = 5  # steps from a module: a dict of lists in a file, read by a function that forward calls
ENTRIES = 20_000  # of all that is looked into beside the modules themselves
_LONG = 10_000  # entries of a container that is kept but not looked into
_LONGEST = 1_000_000  # of one that is kept
_LARGEST = 1 << 20  # bytes of an array

_ATOMS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, range, slice)
_UNTOUCHED = (torch.optim.Optimizer, DataLoader, Dataset, Sampler)  # nothing that runs in a forward
_OTHERS_CODE = {*sys.stdlib_module_names, "torch", "numpy", "builtins", "stabilitylens"}
_PLAIN_HOLDERS = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList)
_STORES_GLOBAL = dis.opmap["STORE_GLOBAL"]


class Reach:
    """What was found, with how to put each back.

    Attributes:
        looked_into: number of objects beside the modules themselves.
        modules: the given ones and others that they hold without having registered them.
        tensors: those held by anything but a module's parameters and buffers.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.looked_into = 0
        self.modules: list[nn.Module] = []
        self.tensors: list[Tensor] = []
        self._backs: list[PutBack] = []
        self._seen: dict[int, Any] = {}  # holds them, so that no other object gets the same id
        self._names: set[tuple[int, str]] = set()
        self._open: deque[tuple[Any, int]] = deque()
        for module in modules:
            self._seen[id(module)] = module
            self._module(module, 0)
        while self._open and self.looked_into < ENTRIES:
            self.looked_into += 1
            with suppress(Exception):  # what does not let itself be looked into is left alone
                self._look(*self._open.popleft())

    def put_back(self) -> None:
        """Make everything what it was."""
        for back in self._backs:
            back()

    def _add(self, values: Iterable[Any], depth: int) -> None:
        if depth > DEPTH:
            return
        for value in values:
            if type(value) not in _ATOMS and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._open.append((value, depth))

    def _keep(self, kept: tuple[PutBack, list[Any]] | None, depth: int) -> None:
        if kept is not None:
            self._backs.append(kept[0])
            self._add(kept[1], depth + 1)

    def _module(self, module: nn.Module, depth: int) -> None:
        self.modules.append(module)
        attributes = module.__dict__
        self._backs.append(contents.keep_dict(attributes)[0])
        for name, value in attributes.items():
            if isinstance(value, dict) and (name.endswith("_hooks") or name in ("_parameters", "_buffers", "_modules")):
                self._seen[id(value)] = value
                self._backs.append(contents.keep_dict(value)[0])
            else:
                self._add((value,), depth + 1)
        self._add((type(module),), depth + 1)

    def _look(self, value: Any, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, Tensor):
            self.tensors.append(value)
        elif issubclass(kind, nn.Module):
            self._module(value, depth)
            self._add((*value._parameters.values(), *value._buffers.values(), *value._modules.values()), depth + 1)
        elif issubclass(kind, type):
            self._class(value, depth)
        elif issubclass(kind, list | deque | dict | set | tuple | frozenset):
            self._container(value, depth)
        elif issubclass(kind, np.ndarray | bytearray):
            if (len(value) if issubclass(kind, bytearray) else value.nbytes) <= _LARGEST:
                self._backs.append(contents.keep_numbers(value))
        elif (back := contents.keep_randoms(value)) is not None:
            self._backs.append(back)
        elif kind is CellType:
            self._keep(contents.keep_cell(value), depth - 1)
        elif not issubclass(kind, ModuleType):
            self._add(_parts_of_code(value), depth)
            self._object(value, depth)

    def _container(self, value: Any, depth: int) -> None:
        if isinstance(value, tuple | frozenset):
            self._add(value if len(value) <= _LONG else (), depth + 1)
        elif len(value) <= _LONGEST:
            keep: Any = contents.keep_dict if isinstance(value, dict) else contents.keep_set if isinstance(value, set) else contents.keep_list
            back, held = keep(value)
            self._backs.append(back)
            self._add(held if len(value) <= _LONG else (), depth + 1)
        if type(value).__module__ not in _OTHERS_CODE:
            self._object(value, depth)

    def _object(self, value: Any, depth: int) -> None:
        if isinstance(value, FunctionType):
            self._keep(contents.keep_dict(value.__dict__), depth)
            self._mentioned(value, depth)
        elif not issubclass(type(value), _UNTOUCHED) and (_is_own(type(value)) or type(value) in _PLAIN_HOLDERS):
            with suppress(AttributeError):  # asked of object, for a class may answer to any name
                self._keep(contents.keep_dict(object.__getattribute__(value, "__dict__")), depth)
            self._keep(contents.keep_slots(value), depth)
            self._add((type(value),), depth)

    def _class(self, cls: type, depth: int) -> None:
        for each in cls.__mro__:
            if _is_own(each) and (each is cls or id(each) not in self._seen):
                self._seen[id(each)] = each
                self._keep(contents.keep_class(each), depth)

    def _mentioned(self, function: FunctionType, depth: int) -> None:
        """What the names in its code are bound to in its file, and in files that it mentions."""
        for code in _codes(function.__code__):
            names = function.__globals__
            self._named(code, names, depth, new=_STORES_GLOBAL in code.co_code[::2])
            for file in _files(code.co_names, names, {id(names)}):
                self._named(code, file, depth, new=False)

    def _named(self, code: CodeType, names: dict[str, Any], depth: int, *, new: bool) -> None:
        fresh = [name for name in code.co_names if new or (id(names), name) not in self._names]
        self._names.update((id(names), name) for name in fresh)
        back, held = contents.keep_names(names, fresh, new=new)
        self._backs.append(back)
        self._add((item for item in held if not isinstance(item, ModuleType)), depth + 1)


def _files(mentioned: Iterable[str], names: dict[str, Any], seen: set[int]) -> Iterator[dict[str, Any]]:
    """The names of the files that are mentioned in one, and so on."""
    for name in mentioned:
        file = names.get(name)
        if type(file) is ModuleType and _is_ours(file.__name__) and id(vars(file)) not in seen:
            seen.add(id(vars(file)))
            yield vars(file)
            yield from _files(mentioned, vars(file), seen)


def _parts_of_code(value: Any) -> Iterator[Any]:
    """What is inside of functions, and of what stands for one."""
    if isinstance(value, FunctionType):
        yield from value.__closure__ or ()
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial | functools.partialmethod):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, functools._lru_cache_wrapper):
        yield value.__wrapped__


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_own(cls: type) -> bool:
    return _is_ours(cls.__module__)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] not in _OTHERS_CODE
