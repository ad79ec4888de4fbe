"""The counterfactual qk_clip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stabilitylens.hooks.attention import SDPA
from stabilitylens.hooks.counterfactuals._attention import AttentionView, Rows, arguments
from stabilitylens.hooks.counterfactuals._functions import Around
from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial
from stabilitylens.hooks.functions import Function
from stabilitylens.suspects._suspect import DECISIVE

#: the largest logit that a head may have (Kimi K2, https://arxiv.org/abs/2507.20534)
LARGEST = 100.0


@counterfactual(suspect="attention-logit-growth", weight=DECISIVE)
def qk_clip(trial: Trial) -> None:
    """QK-Clip: after each step, shrink the queries and keys of the heads whose largest logit was above 100 to where it is 100.

    The rows of the projections that make a head's queries and keys are each multiplied by √(100 / largest), as in Kimi K2:
    <https://arxiv.org/abs/2507.20534>. Where several heads share their keys the queries take all of it. Where the rows can't
    be told, or a norm follows them, the queries are multiplied as they enter scaled dot-product attention.
    """
    view, factors, done = AttentionView(trial), dict[int, Tensor](), list[float]()

    def clip(_: object) -> None:
        for number, largest in view.largest.items():
            by = torch.where(largest > LARGEST, LARGEST / largest, 1.0)
            if bool((by < 1).any()):
                done.append(float(largest.max()))
                if not _shrink(*view.rows[number], by):
                    factors[number] = factors.get(number, 1.0) * by
        view.forget()

    def instead(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given, by = arguments(args, kwargs), factors.get(view.number)
        if by is not None:
            reached.add(view.number)
            given["query"] = given["query"] * by[:, None, None].to(given["query"])
        return func(given.pop("query"), given.pop("key"), given.pop("value"), **given)

    def check() -> None:
        if not done:
            raise NotApplicable(f"no head's largest logit was above {LARGEST:g}" if view.rows else "no attention call was seen")
        if factors.keys() - reached:
            raise NotApplicable("the rows that make the queries can't be told, and attention that is spelled out is not reached otherwise")

    reached: set[int] = set()
    trial.stack.enter_context(Around(dict.fromkeys(SDPA, instead)))
    trial.after_update(clip)
    trial.at_end(check)


def _shrink(queries: Rows | None, keys: Rows | None, by: Tensor) -> bool:
    """Multiply the rows of weights that make each head's logits; whether they are known."""
    if queries is None or len(queries.index) != len(by):
        return False
    own_keys = keys is not None and len(keys.index) == len(by) and len(torch.unique(keys.index)) == keys.index.numel()
    queries.scale(by.sqrt() if own_keys else by)
    if keys is not None and own_keys:
        keys.scale(by.sqrt())
    return True
