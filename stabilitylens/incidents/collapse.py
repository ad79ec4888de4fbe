"""The collapse detector."""

from __future__ import annotations

import numpy as np

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import plain
from stabilitylens.run import Run

#: zeros at the end of the record, in a row and as a share of it. *Heuristic*: rounded rewards and losses are zero
#: for a few logs now and then.
ZEROS, SHARE = 8, 0.2


@detector
def collapse(run: Run) -> list[Incident]:
    """The loss became exactly zero and stayed there: nothing is learnt from a zero.

    A saturated reward does it, a batch without labels, and a trainer that replaces NaN by zero.
    """
    series = run["loss"] if "loss" in run else None
    if series is None or series.values.ndim != 1 or not series.observed():
        return []
    other = np.flatnonzero(series.values != 0)
    first, n = int(other[-1]) + 1 if len(other) else 0, len(series)
    if first == 0 or n - first < max(ZEROS, SHARE * n):
        return []
    told = f"loss is exactly 0 from step {int(series.steps[first])} to the end of the record, {n - first} values."
    return [plain(series, "loss", "collapse", first, n - 1, "warning", told, recovery="none")]
