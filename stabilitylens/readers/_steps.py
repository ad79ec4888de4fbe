"""Which column counts the steps, if any does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

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
            counted = values if _usable(values) else values[~np.isnan(values)]
            rising = float(np.mean(counted[1:] > counted[:-1])) if len(counted) > 1 else 1.0
            scores[key] = (round(10 * rising), -rank)
    return max(scores, key=lambda key: scores[key], default=None)


def _counts(values: Float[np.ndarray, " row"]) -> bool:
    there = values if _usable(values) else values[np.abs(values) < _LARGEST]
    if len(there) < COVERED * len(values) or not len(there):
        return False
    whole = there == np.round(there)
    return bool(whole.mean() >= WHOLE and (len(there) == 1 or np.ptp(there[whole]) > 0))


def _usable(values: Float[np.ndarray, " row"]) -> bool:
    """Whether all values can be steps; told without another array, as there may be many."""
    return bool(len(values) and -_LARGEST < values.min() and values.max() < _LARGEST)


def filled(values: Float[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
    """Steps as whole numbers; a row without one has that of the row before it, those at the head that of the first."""
    if _usable(values):
        return np.asarray(np.rint(values), dtype=np.int64)
    good = np.isfinite(values) & (np.abs(values) < _LARGEST)
    last = np.maximum.accumulate(np.where(good, np.arange(len(values)), -1))
    last[last < 0] = np.argmax(good)
    return np.round(values[last]).astype(np.int64)
