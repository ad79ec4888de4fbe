"""A series aligned on an incident: a baseline, the lead before the incident, and its rise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.run import Series

#: samples of the baseline at most, and at least. *Heuristic*: enough for a median and a spread, and no other regime.
BASELINE, LEAST = 64, 10
#: samples before the incident that may hold its cause, at most, and as a share of all that came before. *Heuristic*.
LEAD, SHARE = 24, 1 / 3
#: the share of its largest value that an unsteady series' median size is, at least, where it is next to zero
LEAST_SIZE = 1e-3


@dataclass(frozen=True)
class Window:
    """A stretch of a series around an incident, all places side by side.

    Attributes:
        steps: step numbers of the samples.
        values: the samples, one column a place; NaN where nothing was observed.
        lead: the first sample of the lead; the baseline is before it.
        start: the first sample at or after the incident's start.
        shape: sizes of the axes that the columns are flattened from.
    """

    steps: Int[np.ndarray, " sample"]
    values: Float[np.ndarray, "sample place"]
    lead: int
    start: int
    shape: tuple[int, ...]


def window(series: Series, start: int, stop: int) -> Window | None:
    """The samples around an incident.

    Args:
        series: with any axes; a memory-mapped array is read no further than the window.
        start, stop: the incident's first step and the last step of its rise.

    Returns:
        None where too few samples came before to say what is usual.
    """
    first, last = (int(i) for i in np.searchsorted(series.steps, (start, stop + 1)))
    lead = min(LEAD, int(first * SHARE))
    if first - lead < LEAST:
        return None
    begin = max(0, first - lead - BASELINE)
    values = np.asarray(series.values[begin:last], dtype=np.float64)
    flat = values.reshape(len(values), -1)
    return Window(series.steps[begin:last], flat, first - lead - begin, first - begin, series.values.shape[1:])


def even(values: Float[np.ndarray, "sample place"]) -> Float[np.ndarray, "sample place"]:
    """Values on a scale where noise is even: log where all are positive, else asinh of the value over its usual size.

    What is infinite becomes NaN.
    """
    known = np.where(np.isfinite(values), values, np.nan)
    positive = np.all(np.isnan(known) | (known > 0), axis=0)
    sizes = np.abs(np.nan_to_num(known))
    with np.errstate(all="ignore"):
        size = np.maximum(np.median(sizes, axis=0), sizes.max(axis=0, initial=0.0) * LEAST_SIZE)
        return np.asarray(np.where(positive, np.log(known), np.arcsinh(known / np.where(size > 0, size, 1.0))))
