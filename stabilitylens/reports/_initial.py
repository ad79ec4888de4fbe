"""What one forward and backward before training showed, in a few rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stabilitylens.run import Run, Series

#: what an audit looks at, in this order
SHOWN = (
    "embedding_rms", "resid_rms", "resid_grad_norm", "max_attn_logit", "attn_entropy_ratio", "branch_ratio", "log_z", "grad_norm",
)


@dataclass(frozen=True)
class Row:
    """One quantity: at the first and the last place along its first axis, and its extremes over all places."""

    name: str
    first: float
    last: float
    smallest: float
    largest: float
    places: int


def rows(run: Run) -> Iterator[Row]:
    """The quantities that were observed; of those by head, first and last are medians over the heads."""
    for name in SHOWN:
        if run.why_missing(name) is None:
            yield _row(name, run[name])


def _row(name: str, series: Series) -> Row:
    values = series.values[-1]
    per_place = values.reshape(values.shape[0], -1) if values.ndim else values.reshape(1, 1)
    seen = [place[~np.isnan(place)] for place in per_place if not np.all(np.isnan(place))]
    everything = np.concatenate(seen)
    first, last = float(np.median(seen[0])), float(np.median(seen[-1]))
    return Row(name, first, last, float(np.min(everything)), float(np.max(everything)), len(seen))
