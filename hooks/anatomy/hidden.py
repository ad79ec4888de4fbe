"""Operations that do their work out of sight: how to call them again on other numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

_PLAIN = ("aten", "prims", "prim", "_c10d_functional", "c10d_functional")


@dataclass(frozen=True)
class Hidden:
    """A call that can be made again.

    Attributes:
        function: what was called.
        args, kwargs: with what.
        swapped: the tensors among them that others may take the place of.
        written: those that it writes its result into, where it returns none.
    """

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    swapped: tuple[Tensor, ...]
    written: tuple[Tensor, ...] = ()

    def __call__(self, *others: Tensor) -> Any:
        """Call it on other tensors; what it wrote into is left alone."""
        places = {id(a): b for a, b in zip(self.swapped, others, strict=True)}
        places |= {id(t): torch.empty_like(t) for t in self.written if id(t) not in places}

        def swap(leaf: Any) -> Any:
            return places.get(id(leaf), leaf)

        out = self.function(*tree_map(swap, self.args), **tree_map(swap, self.kwargs))
        return places[id(self.written[0])] if self.written else out


def is_opaque(operation: Any) -> bool:
    """Whether an operation is none of PyTorch's own."""
    return operation.namespace not in _PLAIN


def written_by(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """The arguments that an operation's schema says it writes into."""
    schema = operation._schema.arguments
    given = {argument.name: value for argument, value in zip(schema, args, strict=False)} | kwargs
    changed = [given.get(a.name) for a in schema if a.alias_info is not None and a.alias_info.is_write]
    return tuple(leaf for leaf in tree_leaves(changed) if isinstance(leaf, Tensor))


@contextmanager
def watched_functions(seen: Callable[[Callable[..., Any], Any, Any, Any], None]) -> Iterator[None]:
    """Report each call of a custom ``autograd.Function``.

    Args:
        seen: is given what to call to repeat it, its arguments and keyword arguments, and what it returned.
    """
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        call = original.__get__(None, cls)
        out = call(*args, **kwargs)
        seen(call, args, kwargs, out)
        return out

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]
