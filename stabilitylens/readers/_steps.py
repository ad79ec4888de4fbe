"""Which column counts the steps, if any does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from stabilitylens.readers._large import chosen, count, each, empty, every, together
from stabilitylens.readers._names import step_rank

#: a counter is there on this share of the loss's rows, and whole on this share of those. *Heuristic*.
COVERED, WHOLE = 0.9, 0.999
#: steps are int64
_LARGEST = 2.0**62


def choose_steps(columns: Mapping[str, Float[np.ndarray, " row"]]) -> str | None:
    """The key of the step counter among columns over the loss's rows, NaN where a row has none; None if none is one.

    A counter is called so, whole (a fractional epoch counts no steps), there on nearly all rows, and moves. Of several
    the one that rises on most rows counts, of equals the one with the best name.
    """
    scores = {}
    for key, values in columns.items():
        rank = step_rank(key)
        if rank is not None and _counts(values):
            counted = values if _usable(values) else chosen(each(lambda some: ~np.isnan(some), values, dtype=bool), values)
            rising = count(np.greater, counted[1:], counted[:-1]) / (len(counted) - 1) if len(counted) > 1 else 1.0
            scores[key] = (round(10 * rising), -rank)
    return max(scores, key=lambda key: scores[key], default=None)


def _counts(values: Float[np.ndarray, " row"]) -> bool:
    there = values if _usable(values) else chosen(each(lambda some: np.abs(some) < _LARGEST, values, dtype=bool), values)
    if len(there) < COVERED * len(values) or not len(there):
        return False
    whole = count(_is_whole, there)
    if whole < WHOLE * len(there):
        return False
    kept = there if whole == len(there) else chosen(each(_is_whole, there, dtype=bool), there)
    return len(there) == 1 or not every(lambda some: some == kept[0], kept)


def _is_whole(values: Float[np.ndarray, " row"]) -> Bool[np.ndarray, " row"]:
    whole: np.ndarray = values == np.round(values)
    return whole


def _usable(values: Float[np.ndarray, " row"]) -> bool:
    """Whether all values can be steps."""
    return bool(len(values)) and every(lambda some: np.abs(some) < _LARGEST, values)


def filled(values: Float[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
    """Steps as whole numbers; a row without one has that of the row before it, those at the head that of the first."""
    if _usable(values):
        return each(np.rint, values, dtype=np.int64)
    out = empty(len(values), np.int64)
    before = next(value for (some,) in together(values) for value in some[np.abs(some) < _LARGEST][:1])
    for made, some in together(out, values):
        good = np.abs(some) < _LARGEST
        last = np.maximum.accumulate(np.where(good, np.arange(1, len(some) + 1), 0))
        made[:] = np.round(np.append(before, some)[last])
        before = made[-1]
    return out
