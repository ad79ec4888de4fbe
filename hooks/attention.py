"""q, k, v, mask and scale as they enter each attention call, whoever wrote it.

Scaled dot-product attention tells all of them. In a hand-written softmax(QKᵀ)·V they are pieced together:
the product of two activations is remembered, with the factors that multiply it, until a softmax over its
last axis; whatever else was added by then (mask, bias, soft-cap) is the difference between the softmax's
input and scale·q·k. The product of the softmax with a third activation tells v. Numbers that multiplied
q or k before their product belong to the scale, so that every spelling gives the same norms.

Nothing here computes on a tensor while the user's forward runs: a Call keeps the tensors and how they are
to be arranged, and :meth:`Call.resolve` is for the inside of the opaque operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stabilitylens.hooks.arrange import Arranged, as_heads, number, operands
from stabilitylens.hooks.attention_call import Call, Resolved, aligned, projected
from stabilitylens.hooks.functions import After, Function, named
from stabilitylens.hooks.origins import OriginWatch
from stabilitylens.hooks.provenance import Provenance

SDPA = frozenset({F.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention})
PRODUCTS = named("matmul", "__matmul__", "bmm", "einsum", "baddbmm")
SOFTMAX = named("softmax")
FACTORS = named("mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply")
DIVISORS = named("div", "div_", "__truediv__", "__itruediv__", "true_divide", "divide")
#: leave a tensor of logits or probabilities what it is
CARRIERS = named(
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "masked_fill", "masked_fill_", "where", "view",
    "reshape", "to", "float", "type", "type_as", "half", "bfloat16", "contiguous", "clone", "dropout", "dropout_",
    "clamp", "max", "maximum", "nan_to_num", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "expand",
    "__getitem__",
)  # fmt: skip
#: put columns beside those of a tensor of logits
JOINS = named("cat", "concat")
PADS = named("pad") | {torch._C._nn.pad}
#: what a softmax is made of by hand
EXPONENTIALS = named("exp", "exp_", "exp2", "exp2_")
#: why a softmax is not read
PIECES = "its softmax is not over one product of queries and keys, but over pieces put together"
OTHER_AXIS = "its softmax is over another axis of a product than the last, which is not read"
BY_HAND = "it takes exponentials of a product by hand, of which no softmax is read"
#: bound a tensor of logits
CAPS = named("tanh", "tanh_")
#: change the layout of q or k and nothing else
LAYOUTS = named(
    "view", "reshape", "transpose", "permute", "contiguous", "flatten", "unflatten", "swapaxes", "movedim", "unbind",
    "chunk", "split", "__getitem__",
)  # fmt: skip


#: numbers, or tensors of one element, each with the power that it stands in
Factors = tuple[tuple[Any, int], ...]


def _product_of(factors: Factors) -> float:
    total = 1.0
    for factor, power in factors:
        total *= number(factor) ** power
    return total


@dataclass(frozen=True)
class _Logits:
    """What is known of a tensor of logits, or of probabilities once ``logits`` is set."""

    query: Arranged
    key: Arranged
    factors: Factors = ()
    query_factors: Factors = ()
    key_factors: Factors = ()
    heads: int | None = None
    logits: Tensor | None = None
    capped: bool = False
    first_key: int = 0


class AttentionWatch:
    """Finds attention calls among the torch functions of a forward and hands each to ``emit``.

    Args:
        emit: is told of each call.
        origins: knows what the projections of q and k made.
        unseen: told why a softmax is not read.
    """

    def __init__(
        self, emit: Callable[[Call], None], origins: OriginWatch, unseen: Callable[[str], None] = lambda _why: None
    ) -> None:
        self._unseen = unseen
        self._emit_call, self._origins = emit, origins
        self.emitted = 0
        self._known: Provenance[_Logits] = Provenance()
        self._scaled: Provenance[Factors] = Provenance()
        self._folded: Provenance[int] = Provenance()
        self._waiting: _Logits | None = None
        self._heads: int | None = None
        self.after: dict[Function, After] = (
            dict.fromkeys(CARRIERS | LAYOUTS, self._carry)
            | dict.fromkeys(JOINS, self._join)
            | dict.fromkeys(PADS, self._pad)
            | dict.fromkeys(EXPONENTIALS, self._exponential)
            | dict.fromkeys(CAPS, self._cap)
            | dict.fromkeys(FACTORS, self._multiply)
            | dict.fromkeys(DIVISORS, self._divide)
            | dict.fromkeys(PRODUCTS, self._product)
            | dict.fromkeys(SOFTMAX, self._softmax)
            | dict.fromkeys(SDPA, self._sdpa)
        )

    @property
    def seen(self) -> int:
        """How many calls have been seen so far, with one that still waits for its value."""
        return self.emitted + (self._waiting is not None)

    def note(self, call: Call) -> None:
        """Hand on an attention call."""
        self.emitted += 1
        self._emit_call(call)

    def heads(self, count: int | None) -> None:
        """The number of heads of the multi-head attention that is running, None after it."""
        self._heads = count

    def flush(self) -> None:
        """Emit a call that is still waiting for its value, and forget every tensor."""
        waiting, self._waiting = self._waiting, None
        self._known.clear()
        self._scaled.clear()
        self._folded.clear()
        if waiting is not None:
            self._finish(waiting, None)

    def _sdpa(self, _f: Function, args: tuple[Any, ...], kwargs: dict[str, Any], _out: Any) -> None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
        q, k, v = (given[name] for name in names[:3])
        mask, scale = given.get("attn_mask"), given.get("scale")
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        causal = bool(given.get("is_causal"))
        tensors = (q, k, v) if mask is None else (q, k, v, mask)
        of_query, of_key = self._origins.get(q), self._origins.get(k)
        places = self._origins.place(q), self._origins.place(k)

        def resolve() -> Resolved:
            query, key = as_heads(q), as_heads(k)
            return Resolved(
                query, key, as_heads(v), float(factor), mask, causal,
                query_proj=projected(of_query, query, as_heads), key_proj=projected(of_key, key, as_heads),
                self_attention=aligned(*places, query, key),
            )  # fmt: skip

        self.note(Call(tensors, resolve))

    def _product(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        pair = operands(func, args, kwargs)
        if pair is None:
            return
        known = self._known.get(pair.left.tensor)
        if known is not None and known is self._waiting:
            self._waiting = None
            self._finish(known, pair.right)
        elif isinstance(out, Tensor) and pair.in_order:
            alpha = kwargs.get("alpha", 1)
            factors = ((alpha, 1),) if alpha != 1 else ()
            of_query, of_key = (self._scaled.get(x.tensor) or () for x in (pair.left, pair.right))
            heads = self._heads or self._folded.get(pair.left.tensor)
            self._known.set(out, _Logits(pair.left, pair.right.transposed(), factors, of_query, of_key, heads))

    def _cap(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        known = self._known.get(args[0])
        if known is not None and known.logits is None:
            self._known.set(out, replace(known, capped=True))

    def _carry(self, func: Function, args: tuple[Any, ...], _k: dict[str, Any], out: Any) -> None:
        if len(self._known) and isinstance(out, Tensor):
            self._known.set(out, next((k for k in map(self._known.get, args[:3]) if k is not None), None))
        if func in LAYOUTS:
            for part in out if isinstance(out, (tuple, list)) else (out,):
                self._lay_out(args[0], part)

    def _join(self, _f: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Columns beside the keys' are sinks; pieces of several products are no logits of one."""
        found = [(i, k) for i, k in enumerate(map(self._known.get, args[0])) if k is not None] if len(self._known) else []
        if not found:
            return
        place, known = found[0]
        if known.logits is None:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            if len(found) > 1 or dim not in (-1, out.dim() - 1):
                return
            known = replace(known, first_key=known.first_key + sum(x.shape[-1] for x in args[0][:place]))
        self._known.set(out, known)

    def _pad(self, _f: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        known = self._known.get(args[0]) if len(self._known) and args else None
        amounts = kwargs.get("pad", args[1] if len(args) > 1 else ())
        if known is not None and not any(amounts[2:]) and min(amounts) >= 0:
            before = amounts[0] if known.logits is None else 0
            self._known.set(out, replace(known, first_key=known.first_key + before))

    def _exponential(self, _f: Function, args: tuple[Any, ...], _k: dict[str, Any], _out: Any) -> None:
        known = self._known.get(args[0])
        if known is not None and known.logits is None:
            self._unseen(BY_HAND)

    def _lay_out(self, before: Any, after: Tensor) -> None:
        """A new layout keeps the factors, and may fold (batch, head, …) into one axis that is to be unfolded later."""
        self._scaled.set(after, self._scaled.get(before))
        folds = before.dim() == after.dim() + 1 > 3 and before.shape[-2:] == after.shape[-2:]
        if folds and before.shape[-4] * before.shape[-3] == after.shape[-3]:
            self._folded.set(after, before.shape[-3])
        else:
            self._folded.set(after, self._folded.get(before))

    def _multiply(self, _f: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self._scale(args, kwargs, out, 1)

    def _divide(self, _f: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self._scale(args, kwargs, out, -1)

    def _scale(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, power: int) -> None:
        both = (*args[:2], *(kwargs[n] for n in ("other", "value") if n in kwargs))
        if not isinstance(out, Tensor) or out.dim() < 3 or len(both) < 2:
            return
        for one, other in (both, both[::-1]):
            known = self._known.get(one)
            single = not isinstance(other, Tensor) or other.numel() == 1
            if known is not None:
                if single and known.logits is None:
                    known = replace(known, factors=(*known.factors, (other, power)))
                self._known.set(out, known)
                return
            if single and isinstance(one, Tensor):
                self._scaled.set(out, (*(self._scaled.get(one) or ()), (other, power)))
                self._folded.set(out, self._folded.get(one))
                return

    def _softmax(self, _f: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        logits = args[0] if args else kwargs["input"]
        known = self._known.get(logits)
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim not in (-1, logits.dim() - 1) or logits.dim() < 2:
            if known is not None and known.logits is None:
                self._unseen(OTHER_AXIS)
            return
        if known is None and logits.dim() > 2 and self._origins.get(logits) is None:
            self._unseen(PIECES)
        if known is None or known.logits is not None:
            return
        waiting, self._waiting = self._waiting, replace(known, logits=logits)
        self._known.set(out, self._waiting)
        if waiting is not None:
            self._finish(waiting, None)

    def _finish(self, known: _Logits, value: Arranged | None) -> None:
        logits, heads = known.logits, known.heads
        assert logits is not None
        origin_q, origin_k = self._origins.get(known.query.tensor), self._origins.get(known.key.tensor)
        places = self._origins.place(known.query.tensor), self._origins.place(known.key.tensor)

        def resolve() -> Resolved:
            of_query, of_key = _product_of(known.query_factors), _product_of(known.key_factors)
            q = as_heads(known.query(), logits, heads) / of_query
            k = as_heads(known.key(), logits, heads) / of_key
            v = None if value is None else as_heads(value(), logits, heads)
            scale = _product_of(known.factors) * of_query * of_key
            made_q = projected(origin_q, q, lambda x: as_heads(known.query.layout(x), logits, heads))
            made_k = projected(origin_k, k, lambda x: as_heads(known.key.layout(x), logits, heads))
            logits_as_heads = as_heads(logits, logits, heads)
            return Resolved(
                q, k, v, scale, None, False, logits_as_heads, made_q, made_k, capped=known.capped,
                first_key=known.first_key, self_attention=aligned(*places, q, k),
            )  # fmt: skip

        tensors = (known.query.tensor, known.key.tensor, logits)
        self.note(Call(tensors if value is None else (*tensors, value.tensor), resolve))
