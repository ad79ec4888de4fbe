"""The attention calls of a trial: which one of the forward, with which largest logits, and made by which rows of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from stabilitylens.hooks.attention import AttentionWatch
from stabilitylens.hooks.attention_call import Call, Resolved
from stabilitylens.hooks.attention_view import statistics
from stabilitylens.hooks.counterfactuals._functions import ATTENTION
from stabilitylens.hooks.counterfactuals._trial import Trial
from stabilitylens.hooks.functions import Function, FunctionWatch, merged
from stabilitylens.hooks.guard import Guard
from stabilitylens.hooks.opaque import autocast_dtype
from stabilitylens.hooks.origins import WEIGHTED, OriginWatch
from stabilitylens.moments import AttentionMoments

#: tokens by which a row of weights is told from the others, by what it made of them
TOKENS = 4
#: a head whose queries differ in length from what the projection made by so much more for one token than for another was
#: normalised in between. *Heuristic*: a rotation keeps lengths to rounding, of bf16 too.
UNEVEN = 0.05
_MAX = AttentionMoments.names().index("max_logit")


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of scaled dot-product attention by name."""
    return dict(zip(ATTENTION, args, strict=False)) | kwargs


class Calls:
    """Numbers the attention calls of each forward from 0.

    Args:
        trial: whose model is watched until its end.
    """

    def __init__(self, trial: Trial) -> None:
        self._next, self.inside = 0, False
        trial.stack.callback(trial.model.register_forward_pre_hook(self._begin, prepend=True).remove)
        trial.stack.callback(trial.model.register_forward_hook(self._end).remove)

    def next(self) -> int:
        """The number of the call that is made now."""
        self._next += 1
        return self._next - 1

    def _begin(self, *_: object) -> None:
        self._next, self.inside = 0, True

    def _end(self, *_: object) -> None:
        self.inside = False


@dataclass(frozen=True)
class Rows:
    """The rows of a projection that make each head: ``index`` is (head, d_head)."""

    weight: Tensor
    bias: Tensor | None
    index: Int[Tensor, "head d_head"]

    @torch.no_grad()
    def scale(self, factors: Float[Tensor, " head"]) -> None:
        """Multiply the rows of each head."""
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                by = factors.to(parameter)[:, None].expand(self.index.shape).reshape(-1)
                parameter[self.index.reshape(-1)] *= by if parameter.dim() == 1 else by[:, None]


class AttentionView:
    """Watches the attention calls of a trial's forwards.

    Attributes:
        largest: of each call the largest logit of each head since :meth:`forget`.
        rows: of each call those of queries and keys, None where they can't be told or are not all that makes them.
    """

    def __init__(self, trial: Trial) -> None:
        self._calls, self._guard = Calls(trial), Guard()
        self._origins = OriginWatch()
        self._watch = AttentionWatch(self._attended, self._origins)
        self._linear: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self.largest: dict[int, Float[Tensor, " head"]] = {}
        self.rows: dict[int, tuple[Rows | None, Rows | None]] = {}
        mode = FunctionWatch(
            self._guard, {}, merged(self._watch.after), self._watch.heads, (self._origins.after, self._projected)
        )  # fmt: skip
        trial.stack.enter_context(mode)
        trial.stack.callback(trial.model.register_forward_hook(self._end).remove)

    @property
    def number(self) -> int:
        """Of the call that comes next."""
        return self._calls._next

    def forget(self) -> None:
        """Begin a new step."""
        self.largest.clear()

    def _end(self, *_: object) -> None:
        self._watch.flush()
        self._origins.clear()
        self._linear.clear()

    def _projected(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
        if func in WEIGHTED and isinstance(given.get("weight"), nn.Parameter) and given["weight"].dim() == 2:
            self._linear.append((out.detach(), given["weight"], given.get("bias")))

    @torch.no_grad()
    def _attended(self, call: Call) -> None:
        if not self._calls.inside:  # a checkpointed forward that is done again
            return
        number, parts = self._calls.next(), call.parts()
        cast = autocast_dtype(call.tensors[0].device.type)
        for part in parts:
            found = statistics(part, cast)["attention"][:, _MAX]
            self.largest[number] = torch.maximum(self.largest.get(number, found), found)
        if number not in self.rows:
            self.rows[number] = self._rows(parts[0])
        self._linear.clear()

    def _rows(self, part: Resolved) -> tuple[Rows | None, Rows | None]:
        """Of the queries and the keys."""
        return self._of(part.query, part.query_proj), self._of(part.key, part.key_proj)

    def _of(self, entered: Tensor, made: Tensor | None) -> Rows | None:
        if made is None or made.shape != entered.shape or made.shape[-2] < TOKENS:
            return None
        ratio = entered.float().norm(dim=-1) / made.float().norm(dim=-1)
        if not bool((ratio.amax((0, 2)) - ratio.amin((0, 2)) <= UNEVEN * ratio.mean((0, 2))).all()):
            return None
        for out, weight, bias in self._linear:
            index = matched(out, made)
            if index is not None:
                return Rows(weight, bias, index)
        return None


def matched(out: Tensor, made: Float[Tensor, "batch head position d_head"]) -> Int[Tensor, "head d_head"] | None:
    """Which features of a projection's output each head is made of, by their values at some tokens; None where none fits."""
    sought = made[0, :, :TOKENS]
    several = [out[0, :TOKENS], out[:TOKENS, 0]] if out.dim() == 3 else [out[:TOKENS]] if out.dim() == 2 else []
    for tokens in several:
        if len(tokens) < TOKENS:
            continue
        same = (sought[:, :, :, None] == tokens[None, :, None, :]).all(1)
        if bool((same.sum(-1) == 1).all()):
            return same.to(torch.uint8).argmax(-1)
    return None
