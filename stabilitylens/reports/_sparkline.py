"""A curve in one line of text."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from stabilitylens.header import Worse
from stabilitylens.reports._series import spans_decades, worst

BARS = "▁▂▃▄▅▆▇█"
NOT_OBSERVED, NOT_FINITE = " ", "×"


def sparkline(values: Float[np.ndarray, " step"], width: int = 40, worse: Worse = "high") -> str:
    """At most ``width`` columns, each the worrying end of its stretch, so that no peak is dropped.

    Logarithmic where the values span decades; a column with an infinite value is a cross, one without
    an observed value is blank.
    """
    if not len(values):
        return ""
    columns = np.array([worst(part, worse) for part in np.array_split(values, min(width, len(values)))])
    broken = np.array([bool(np.isinf(part).any()) for part in np.array_split(values, len(columns))])
    with np.errstate(divide="ignore"):
        columns = np.log(columns) if spans_decades(columns) else columns
    finite = columns[np.isfinite(columns)]
    low, high = (finite.min() / 2, finite.max() / 2) if finite.size else (0.0, 0.0)  # halves, whose distance is finite
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    bars = np.nan_to_num((np.maximum(columns, 2 * low) / 2 - low) * scale, posinf=0.0)  # the logarithm of 0 is the lowest
    return "".join(
        NOT_FINITE if inf else NOT_OBSERVED if np.isnan(value) else BARS[round(bar)]
        for value, inf, bar in zip(columns, broken, bars, strict=True)
    )
