"""A public score to stand beside the incidents: how often a series left its own recent past."""

from __future__ import annotations

import numpy as np

from stabilitylens.run import Series

#: values before a point, at most, and standard deviations, as OLMo 2 has them (https://arxiv.org/abs/2501.00656)
WINDOW, SIGMAS = 1000, 7.0
#: values before a point, at least. *Heuristic*: the source says nothing of shorter pasts.
LEAST = 100


def spike_score(series: Series) -> float | None:
    """OLMo's spike score: the share of values at least 7 standard deviations from the mean of the last 1,000.

    It counts values, not events, on either side, and does not take the descent off; steep starts hide spikes from it.
    Values that are not finite are left out.

    Args:
        series: one value a step.

    Returns:
        From 0 to 1; None where no value has 100 before it.
    """
    values = np.asarray(series.values, dtype=np.float64)
    values = values[np.isfinite(values)]
    if len(values) <= LEAST:
        return None
    centred = (values - values.mean()) / max(float(np.max(np.abs(values))), 1e-300)
    sums, squares = (np.concatenate([[0.0], np.cumsum(centred**power)]) for power in (1, 2))
    last = np.arange(LEAST, len(values))
    first = np.maximum(last - WINDOW, 0)
    mean = (sums[last] - sums[first]) / (last - first)
    spread = np.sqrt(np.maximum((squares[last] - squares[first]) / (last - first) - mean**2, 0.0))
    apart = np.abs(centred[last] - mean)
    return float(np.mean((apart >= SIGMAS * spread) & (apart > 1e-9)))
