"""Curve: the finite points of a series, on a scale where noise is even and a rise means the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.run import Series

#: the least noise that is believed, as a share of the level: large-batch pretraining has 0.5 to 1.2 %.
#: Without a floor, rounded and constant losses have a scale of zero. *Heuristic*, from public logs.
SCALE_FLOOR = 0.005
#: a point this far out stands out. *Heuristic*: in 30 healthy public logs of averaged losses the worst has 5.5;
#: healthy per-step losses of language models have 5 to 6 in 1,000 above 6 sigma, and those are outliers.
SINGLE = 5.6

#: the least share of the largest value that the median size may be, where the median itself is zero or next to it.
#: *Heuristic*.
LEAST_SIZE = 1e-3

Points = Float[np.ndarray, " point"]


@dataclass(frozen=True)
class Curve:
    """The finite points of one scalar series.

    Attributes:
        index: where each point stands in the series.
        steps, values: as in the series.
        z: log of the values; where a value is not positive, asinh(value / median size), which is
            linear near zero and logarithmic far from it.
        size: the median size of the values where ``z`` is an asinh, else None.
    """

    index: Int[np.ndarray, " point"]
    steps: Int[np.ndarray, " point"]
    values: Points
    z: Points
    size: float | None

    def __len__(self) -> int:
        return len(self.z)

    def level(self, z: float) -> float:
        """A value of ``z`` in the unit of the series."""
        return float(np.exp(z)) if self.size is None else float(np.sinh(z) * self.size)


def median_size(values: Points) -> float | None:
    """What the values are divided by before asinh; None where all are positive and log will do."""
    if len(values) == 0 or values.min() > 0:
        return None
    sizes = np.abs(values)
    return max(float(np.median(sizes)), float(sizes.max()) * LEAST_SIZE) or 1.0


def curve(series: Series) -> Curve:
    """The finite points of a scalar series, as float64."""
    values = np.asarray(series.values, dtype=np.float64)
    known = np.isfinite(values)
    index = np.flatnonzero(known)
    if known.all():  # views, not copies, of a record that may have millions of points
        size = median_size(values)
        return Curve(index, np.asarray(series.steps), values, _logs(values, size), size)
    finite = values[known]
    size = median_size(finite)
    return Curve(index, np.asarray(series.steps)[known], finite, _logs(finite, size), size)


def _logs(values: Points, size: float | None) -> Points:
    return np.asarray(np.log(values) if size is None else np.arcsinh(values / size))
