"""How the operands of an attention product are arranged as (batch, head, position, d)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stabilitylens.hooks.functions import Function, named
from stabilitylens.hooks.shares import local

_BADDBMM = named("baddbmm")


@dataclass(frozen=True)
class Arranged:
    """A tensor as the user had it, and how to lay it out later; calling it does so."""

    tensor: Tensor
    layout: Callable[[Tensor], Tensor]

    def __call__(self) -> Tensor:
        """The tensor, laid out."""
        return self.layout(local(self.tensor.detach()))

    def transposed(self) -> Arranged:
        """The same with its last two axes swapped."""
        return Arranged(self.tensor, lambda x: self.layout(x).transpose(-1, -2))


@dataclass(frozen=True)
class Product:
    """Both activations of a product, laid out as (…, row, d) and (…, d, column).

    ``in_order`` says that its result is laid out as (…, row, column).
    """

    left: Arranged
    right: Arranged
    in_order: bool


def _as_it_is(x: Tensor) -> Tensor:
    return x


def number(x: Any) -> float:
    """A factor as a number."""
    return float(x.detach()) if isinstance(x, Tensor) else float(x)


def as_heads(x: Tensor, logits: Tensor | None = None, heads: int | None = None) -> Tensor:
    """As (batch, head, position, d): folded batch and head axes apart, further leading axes folded.

    Args:
        x: of three dimensions or more.
        logits: the tensor of logits, whose first two axes tell how a folded first axis splits.
        heads: the number of heads where it is known; a folded axis that nothing splits is one head.
    """
    x = local(x.detach())
    if x.dim() == 2:
        return x[None, None]
    if x.dim() == 3 and logits is not None and logits.dim() == 4 and x.shape[0] == logits.shape[0] * logits.shape[1]:
        return x.reshape(logits.shape[:2] + x.shape[1:])
    if x.dim() == 3 and heads is not None and x.shape[0] % heads == 0:
        return x.reshape(-1, heads, *x.shape[1:])
    if x.dim() == 3:
        return x.unsqueeze(1)
    return x.reshape(-1, *x.shape[-3:]) if x.dim() > 4 else x


def operands(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    """The product that a function computes; None where it is none of two activations."""
    if func is torch.einsum:
        pair = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
        return _einsum(args[0], *pair) if len(pair) == 2 and isinstance(args[0], str) else None
    first = 1 if func in _BADDBMM else 0
    given = list(args[first : first + 2])
    given += [kwargs[n] for n in ("batch1", "batch2", "mat2", "other") if n in kwargs][: 2 - len(given)]
    if len(given) < 2 or any(not isinstance(x, Tensor) or x.dim() < 3 for x in given):
        return None
    return Product(Arranged(given[0], _as_it_is), Arranged(given[1], _as_it_is), True)


def _einsum(equation: str, left: Tensor, right: Tensor) -> Product | None:
    """The operands of an einsum as batched matrices, by what each letter does."""
    terms, _, output = equation.replace(" ", "").partition("->")
    a, _, b = terms.partition(",")
    if min(left.dim(), right.dim()) < 3 or "." in equation or not output:
        return None
    batch = [c for c in output if c in a and c in b]
    rows, columns = ([c for c in output if c in own and c not in other] for own, other in ((a, b), (b, a)))
    summed = [c for c in a if c in b and c not in output]
    if not len(summed) == len(rows) == len(columns) == 1:
        return None
    in_order = output == "".join(batch + rows + columns)
    left_order = [a.index(c) for c in batch + rows + summed]
    right_order = [b.index(c) for c in batch + summed + columns]
    return Product(
        Arranged(left, lambda x: x.permute(left_order)), Arranged(right, lambda x: x.permute(right_order)), in_order
    )
