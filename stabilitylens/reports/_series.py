"""What the pictures share: the worrying end of a metric, and the trace that a finding is about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.findings import Finding, Where
from stabilitylens.header import Worse
from stabilitylens.rules import RULES
from stabilitylens.run import Run, Series


@dataclass(frozen=True)
class Trace:
    """One line over the steps; ``threshold`` only where it is in the line's own unit."""

    name: str
    worse: Worse
    steps: Int[np.ndarray, " step"]
    values: Float[np.ndarray, " step"]
    threshold: float | None = None


def metric_of(series: Series) -> str:
    """``grad_norm`` of ``grad_norm/layer``."""
    return series.name.partition("/")[0]


def worse_end(run: Run, series: Series) -> Worse:
    """The end that the run's header calls the worrying one; high where it says nothing."""
    meta = run.header.metrics.get(metric_of(series))
    return meta.worse if meta is not None else "high"


def worst(values: Float[np.ndarray, "*where n"], worse: Worse) -> Float[np.ndarray, "*where"]:
    """Reduce the last axis to its worrying end; NaN, not observed, only where all of it is."""
    reduce, empty = (np.maximum, -np.inf) if worse == "high" else (np.minimum, np.inf)
    seen = ~np.isnan(values)
    out = reduce.reduce(np.where(seen, values, empty), axis=-1, initial=empty)
    return np.where(seen.any(axis=-1), out, np.nan)


def spans_decades(values: Float[np.ndarray, "*where"]) -> bool:
    """Whether a logarithmic scale shows more: all positive, and a factor above 30 (two and a half readable ticks)."""
    finite = values[np.isfinite(values)]
    return bool(finite.size and finite.min() > 0 and finite.max() > 30 * finite.min())


def trace_of(finding: Finding, run: Run) -> Trace | None:
    """The first series that the finding's rule needs, at the finding's layer and head."""
    needs = RULES[finding.code].needs if finding.code in RULES else ()
    name = next((need for need in needs if need in run and run[need].observed()), None)
    if name is None:
        return None
    series = run[name]
    worse = worse_end(run, series)
    values = place_of(series, finding.where, run)
    while values.ndim > 1:
        values = worst(values, worse)
    threshold = finding.threshold
    comparable = finding.observed is not None and bool(np.any(np.isclose(values, finding.observed, rtol=1e-3, atol=0)))
    return Trace(name, worse, series.steps, values, threshold if comparable else None)


def place_of(series: Series, where: Where, run: Run) -> Float[np.ndarray, "step *rest"]:
    """Index the axes that a place names, from the last to the first."""
    values = series.values
    for axis in reversed(range(len(series.axes))):
        index = _index(series.axes[axis], where, run)
        if index is not None and 0 <= index < series.values.shape[1 + axis]:
            values = np.take(values, index, axis=1 + axis)
    return values


def _index(axis: str, where: Where, run: Run) -> int | None:
    layer, head = where.layer, where.head
    if axis == "layer":
        return layer
    if axis == "head":
        return head
    if axis != "attention" or layer is None:
        return None
    calls = run.header.anatomy.attention_calls if run.header.anatomy is not None else ()
    return next((i for i, call in enumerate(calls) if call.layer == layer), layer)
