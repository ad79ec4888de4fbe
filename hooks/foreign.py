"""Attention functions that no mode of torch's can see inside of: they are seen where they are called.

FlexAttention is compiled for the modes around it, FlashAttention is a kernel of its own, and a function that a user
put into the attention registry of transformers may be anything. For the length of an observed forward each of them
stands behind a wrapper that reads its arguments and calls it as it was called.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import torch
from torch import nn

from stabilitylens.hooks.attention import AttentionWatch
from stabilitylens.hooks.attention_call import Call
from stabilitylens.hooks.foreign_calls import flash_call, flex_call, registered_call
from stabilitylens.hooks.functions import FunctionWatch
from stabilitylens.hooks.guard import Guard
from stabilitylens.hooks.origins import OriginWatch
from stabilitylens.hooks.substitutes import Function, Substitutes

FLEX = "torch.nn.attention.flex_attention"
#: where FlashAttention keeps its functions, by version
FLASH = ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn_interface", "flash_attn.cute")
REGISTRY = "transformers.modeling_utils"
#: arguments of a registered attention function, in order
REGISTERED = ("module", "query", "key", "value", "attention_mask")


def _flash_functions() -> Iterator[Function]:
    for library in FLASH:
        for name, value in vars(sys.modules[library]).items() if library in sys.modules else ():
            if name.startswith("flash_attn_") and name.endswith("func") and callable(value):
                yield value


def _flex_functions() -> list[Function]:
    return [sys.modules[FLEX].flex_attention] if FLEX in sys.modules else []


def _registries() -> list[MutableMapping[str, Function]]:
    registry = getattr(sys.modules.get(REGISTRY), "ALL_ATTENTION_FUNCTIONS", None)
    mappings = [getattr(registry, name, None) for name in ("_global_mapping", "_local_mapping")]
    return [m for m in mappings if isinstance(m, dict)]


class ForeignAttention:
    """Stands around them between ``put`` and ``take_back``.

    Args:
        watch: is told of the calls, and knows whether one was seen inside.
        origins: knows what the projections of q and k made.
        functions: the mode that is put aside for what is compiled.
        modules: whose attributes may be such functions.
    """

    def __init__(
        self, watch: AttentionWatch, origins: OriginWatch, functions: FunctionWatch, modules: Iterable[nn.Module],
        guard: Guard,
    ) -> None:
        self._watch, self._origins, self._functions, self.guard = watch, origins, functions, guard
        self._substitutes = Substitutes(self._wrap, modules)
        self._wrappers: dict[tuple[str, Function], Function] = {}
        self._registered: list[tuple[MutableMapping[str, Function], str, Function, Function]] = []

    def put(self) -> None:
        """Have the wrappers stand where the functions stood."""
        self._substitutes.look_for([*_flex_functions(), *_flash_functions()])
        self._substitutes.put()
        for mapping in _registries():
            for name, function in list(mapping.items()):
                if (name, function) not in self._wrappers:
                    self._wrappers[name, function] = self._registered_wrapper(name, function)
                wrapper = self._wrappers[name, function]
                self._registered.append((mapping, name, function, wrapper))
                mapping[name] = wrapper

    def take_back(self) -> None:
        """Have the functions stand where they stood."""
        self._substitutes.take_back()
        for mapping, name, function, wrapper in self._registered:
            if mapping.get(name) is wrapper:
                mapping[name] = function
        self._registered.clear()

    def _wrap(self, function: Function, known_as: Function) -> Function:
        flex = known_as in _flex_functions()
        signature = inspect.signature(known_as)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # the user compiles it within the forward
                return function(*args, **kwargs)
            self._emit(lambda: (flex_call if flex else flash_call)(self._origins, _bound(signature, args, kwargs)))
            with self._functions.aside():
                return function(*args, **kwargs)

        return wrapper

    def _registered_wrapper(self, name: str, function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(REGISTERED, args, strict=False)) | kwargs
            call = lambda: registered_call(self._origins, given["module"], given)  # noqa: E731
            if name == "flex_attention":
                self._emit(call)
                with self._functions.aside():
                    return function(*args, **kwargs)
            before = self._watch.seen
            result = function(*args, **kwargs)
            if self._watch.seen == before:
                self._emit(call)
            return result

        return wrapper

    def _emit(self, call: Callable[[], Call]) -> None:
        try:
            self._watch.note(call())
        except Exception as error:
            self.guard.failed("an attention function", error)


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
