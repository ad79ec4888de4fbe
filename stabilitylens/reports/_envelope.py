"""Long curves and wide maps, thinned so that no peak is dropped."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from stabilitylens.header import Worse
from stabilitylens.reports._series import worst

Steps = Int[np.ndarray, " step"]


def envelope(
    steps: Steps, values: Float[np.ndarray, " step"], columns: int
) -> tuple[Int[np.ndarray, " kept"], Float[np.ndarray, " kept"]]:
    """The lowest and the highest point of each column, at their own steps, and one of those that are not finite.

    Short curves come back as they are.
    """
    if len(steps) <= 2 * columns:
        return steps, values
    edges = np.linspace(0, len(steps), columns + 1).astype(np.int64)[:-1]
    keep: Bool[np.ndarray, " step"] = np.zeros(len(steps), dtype=np.bool_)
    finite = np.isfinite(values)
    keep[_first_of(values, np.minimum, edges, np.where(finite, values, np.inf)) & finite] = True
    keep[_first_of(values, np.maximum, edges, np.where(finite, values, -np.inf)) & finite] = True
    keep[_first_of(values, np.maximum, edges, (~finite).astype(np.float64)) & ~finite] = True
    return steps[keep], values[keep]


def _first_of(
    values: Float[np.ndarray, " step"], reduce: np.ufunc, edges: Int[np.ndarray, " column"], keyed: np.ndarray
) -> Bool[np.ndarray, " step"]:
    """Where each column reaches its extreme for the first time."""
    column = np.zeros(len(values), dtype=np.int64)
    column[edges[1:]] = 1
    column = np.cumsum(column)
    hits = np.flatnonzero(keyed == reduce.reduceat(keyed, edges)[column])
    _, first = np.unique(column[hits], return_index=True)
    mask = np.zeros(len(values), dtype=np.bool_)
    mask[hits[first]] = True
    return mask


def thin_steps(
    steps: Steps, values: Float[np.ndarray, "step *rest"], columns: int, worse: Worse
) -> tuple[Int[np.ndarray, " kept"], Float[np.ndarray, "kept *rest"]]:
    """At most ``columns`` steps, each the worrying end of its stretch, named after its last step."""
    if len(steps) <= columns:
        return steps, values
    parts = np.array_split(np.arange(len(steps)), columns)
    worst_of = [worst(np.moveaxis(values[part[0]:part[-1] + 1], 0, -1), worse) for part in parts]
    return steps[[part[-1] for part in parts]], np.array(worst_of)
