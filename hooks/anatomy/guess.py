"""Let a forward run without numbers: on the meta device, questions about values are answered with a guess."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.fx.experimental._config as settings
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GUESSES = ((0, False), (1, True), (1, False), (2, False))  # (number, truth) to try, in this order
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_OTHERS = (torch.float32, torch.bfloat16)  # what an operation is tried in that does not take the dtype it is given
_SPLITS = (torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes)


@contextmanager
def guessing(number: int, truth: bool) -> Iterator[None]:
    """Answer what meta tensors cannot.

    Args:
        number: what every number is taken to be.
        truth: what every condition is taken to be.
    """
    with _all_selected(), _Calls(number), _Values(number, truth):
        yield


@contextmanager
def _all_selected() -> Iterator[None]:
    """A mask without numbers selects everything; older versions of PyTorch cannot be told so."""
    setting = "meta_nonzero_assume_all_nonzero"
    before = getattr(settings, setting, None)
    if before is not None:
        setattr(settings, setting, True)
    try:
        yield
    finally:
        if before is not None:
            setattr(settings, setting, before)


class _Calls(TorchFunctionMode):
    """A single meta number is written as the guess (it may name a module); what one dtype lacks is done in another."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else None
        if isinstance(first, Tensor) and first.is_meta:
            if func is Tensor.__format__ and first.dim() == 0:
                return format(self._number, args[1])
            if func is Tensor.tolist:
                return torch.full(first.shape, self._number).tolist()
            if func in _SPLITS and len(args) > 1:
                args = (first, _summing_up(first, *args[1:], **(kwargs or {})), *args[2:])
        return _in_another_dtype(func, args, kwargs or {})


class _Values(TorchDispatchMode):
    """``item``, ``nonzero`` and ``equal`` of meta tensors; a forward may mix them with tensors it makes on the CPU."""

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
        given = [leaf.is_meta for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if len(set(given)) > 1:
            if name == "aten::copy_" and not args[0].is_meta:
                return args[0]
            args, kwargs = tree_map(_without_numbers, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _scalar(self, dtype: torch.dtype) -> bool | int | float:
        if dtype == torch.bool:
            return self._truth
        return float(self._number) if dtype.is_floating_point else self._number


def _without_numbers(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, Tensor) else leaf


def _summing_up(whole: Tensor, sizes: Any, dim: int = 0) -> Any:
    """Sizes of parts that may rest on guesses; where they do not make up the whole, it is all in the last."""
    if isinstance(sizes, int) or sum(sizes) == whole.shape[dim]:
        return sizes
    return [0] * (len(sizes) - 1) + [whole.shape[dim]]


def _in_another_dtype(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Operations that exist in one dtype alone (Fourier transforms, grouped products) are shown that one."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        given = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.is_meta}
        for dtype in _OTHERS if given.intersection(_FLOATS) else ():
            with suppress(RuntimeError):
                return _cast(func(*_cast(args, dtype), **_cast(kwargs, dtype)), torch.float32)
        raise


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.dtype in _FLOATS else leaf

    return tree_map(cast, tree)
