"""Optimizer steps that a log counts as skipped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.readers._large import every, where
from stabilitylens.readers._names import normal

#: how the tools call it: counted since the begin of the run, or since the last row
SINCE_BEGIN = frozenset(("skipped", "skipped steps", "skipped iterations", "num skipped", "total skipped", "overflow count", "steps skipped"))
SINCE_LAST = frozenset(("number of skipped iterations", "skipped iters", "number of skipped iterations in interval"))


def skipped(key: str, values: Float[np.ndarray, " row"], steps: Int[np.ndarray, " row"]) -> Iterator[tuple[int, int]]:
    """Row and step of each skipped step; those between two rows are put right before the second.

    Args:
        key: the column's own name; of columns that count something else nothing is yielded.
        values: of the rows that have the column.
        steps: of the same rows.
    """
    if not counts_skips(key) or not every(np.isfinite, values):
        return
    grows = normal(key) in SINCE_BEGIN and every(np.greater_equal, values[1:], values[:-1])
    found = np.append(np.flatnonzero(values[:1] > 0), 1 + where(np.greater, values[1:], values[:-1])) if grows else where(lambda some: some > 0, values)
    for i in found.tolist():
        skips = values[i] - values[i - 1] if grows and i else values[i]
        between = int(steps[i] - steps[i - 1]) if i else max(int(steps[0]), 1)
        for step in range(int(steps[i]) - min(int(skips), max(between, 1)) + 1, int(steps[i]) + 1):
            yield i, step


def counts_skips(key: str) -> bool:
    """Whether a column is called as those that count skipped steps are."""
    return normal(key) in SINCE_BEGIN | SINCE_LAST
