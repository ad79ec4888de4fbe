"""Let a forward run without numbers: on the meta device, questions about values are answered with a guess."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GUESSES = ((0, False), (1, True), (1, False), (2, False))  # (number, truth) to try, in this order
_HALF = (torch.bfloat16, torch.float16)


@contextmanager
def guessing(number: int, truth: bool) -> Iterator[None]:
    """Answer what meta tensors cannot.

    Args:
        number: what every number is taken to be.
        truth: what every condition is taken to be.
    """
    with _Calls(number), _Values(number, truth):
        yield


class _Calls(TorchFunctionMode):
    """A single meta number is written out as the guess (it may name a module); what half precision lacks is widened."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__format__ and args[0].is_meta and args[0].dim() == 0:
            return format(self._number, args[1])
        return _wide_if_needed(func, args, kwargs or {})


class _Values(TorchDispatchMode):
    """``item``, ``nonzero`` and ``equal`` of meta tensors."""

    def __init__(self, number: int, truth: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._number = number
        self._truth = truth

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, first = func._schema.name, args[0] if args else None
        if isinstance(first, Tensor) and first.is_meta:
            if name == "aten::_local_scalar_dense":
                return self._scalar(first.dtype)
            if name == "aten::equal":
                return self._truth
            if name == "aten::nonzero":
                return first.new_zeros((min(2, max(1, first.numel())), first.dim()), dtype=torch.long)
        return func(*args, **(kwargs or {}))

    def _scalar(self, dtype: torch.dtype) -> bool | int | float:
        if dtype == torch.bool:
            return self._truth
        return float(self._number) if dtype.is_floating_point else self._number


def _wide_if_needed(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Operations that exist for float32 alone (Fourier transforms) are shown float32."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        half = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dtype in _HALF]
        if not half or not half[0].is_meta:
            raise
        return func(*tree_map(_wide, args), **tree_map(_wide, kwargs))


def _wide(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype in _HALF else leaf
