"""One run over the other, layer by layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from stabilitylens.rules._track import median
from stabilitylens.run import Run, Series

#: common samples that a ratio is a median over. *Heuristic*.
SAMPLES = 5


@dataclass(frozen=True)
class Ratios:
    """b over a of one series at the end of what both have, an entry a layer or attention call.

    Attributes:
        labels: names of the entries.
        ratios: NaN where one was not observed, or is not positive.
        steps: first and last step of the samples.
    """

    series: str
    axis: str
    labels: tuple[str, ...]
    ratios: tuple[float, ...]
    steps: tuple[int, int]

    @property
    def spread(self) -> float:
        """How far the farthest entry is from 1, on a log scale."""
        logs = np.abs(np.log(np.array(self.ratios)))
        return float(np.nanmax(logs)) if np.isfinite(logs).any() else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, keys as in the JSON contract."""
        return asdict(self)


def ratios(a: Run, b: Run) -> list[Ratios]:
    """Tables of all series by layer or attention call that both recordings have, the most different first."""
    names = [n for n, s in a.series.items() if n in b.series and s.axes and s.axes[0] in ("layer", "attention")]
    tables = [table for name in names if (table := _table(a.series[name], b.series[name])) is not None]
    return sorted(tables, key=lambda table: -table.spread)


def _level(values: Float[np.ndarray, "sample place *rest"]) -> Float[np.ndarray, " place"]:
    """Median over samples and all axes but the first place's."""
    flat = np.moveaxis(np.asarray(values, dtype=np.float64), 1, 0).reshape(values.shape[1], -1)
    return median(np.where(np.isfinite(flat), flat, np.nan), 1)


def _table(a: Series, b: Series) -> Ratios | None:
    steps, i, j = np.intersect1d(a.steps, b.steps, return_indices=True)
    if not len(steps) or a.values.shape[1] != b.values.shape[1]:
        return None
    low, high = _level(a.values[i[-SAMPLES:]]), _level(b.values[j[-SAMPLES:]])
    with np.errstate(all="ignore"):
        ratio = np.where((low > 0) & (high > 0), high / low, np.nan)
    labels = a.labels.get(a.axes[0], ())
    names = tuple(labels[k] if k < len(labels) else f"{a.axes[0]} {k}" for k in range(len(ratio)))
    return Ratios(a.name, a.axes[0], names, tuple(ratio.tolist()), (int(steps[-SAMPLES:][0]), int(steps[-1])))
