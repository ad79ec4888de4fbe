"""Optimizer steps that a log counts as skipped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

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
    name = normal(key)
    if name not in SINCE_BEGIN | SINCE_LAST or not np.isfinite(values).all():
        return
    grows = name in SINCE_BEGIN and bool((np.diff(values) >= 0).all())
    counts = np.diff(values, prepend=0.0) if grows else values
    for i in np.flatnonzero(counts > 0).tolist():
        between = int(steps[i] - steps[i - 1]) if i else max(int(steps[0]), 1)
        for step in range(int(steps[i]) - min(int(counts[i]), max(between, 1)) + 1, int(steps[i]) + 1):
            yield i, step
