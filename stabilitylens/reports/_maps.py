"""Heat maps layer × step as plain data for the page, one colour scale for all runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from stabilitylens.header import Worse
from stabilitylens.reports._envelope import thin_steps
from stabilitylens.reports._series import metric_of, spans_decades, worse_end, worst
from stabilitylens.reports._words import number, rounded, without_formula
from stabilitylens.run import Run, Series

#: cells over all maps, so that a page stays under 6 MB: some 7 bytes a cell beside 4.8 MB of plotly
CELLS = 120_000
#: a map is never drawn with fewer steps than this, nor with more
COLUMNS = (60, 600)

LARGEST = float(np.finfo(np.float64).max)

#: first on the page, in this order, after what the fired rules looked at; all others are one click away
MAIN = ("max_attn_logit", "attn_entropy_ratio", "resid_rms", "resid_grad_norm", "update_rms")


def maps(runs: Sequence[Run], first: Iterable[str] = ()) -> tuple[list[dict[str, Any]], list[str]]:
    """The maps in order of interest, and the names of those that there was no room for.

    Args:
        runs: side by side in every map.
        first: metrics that come before all others.
    """
    order = list(dict.fromkeys([*first, *MAIN]))
    names = list(dict.fromkeys(name for run in runs for name, series in run.series.items() if _drawable(series)))
    names.sort(key=lambda n: order.index(n.partition("/")[0]) if n.partition("/")[0] in order else len(order))
    rows = np.cumsum([sum(run.series[name].values.shape[1] for run in runs if name in run.series) for name in names])
    fit = int(np.searchsorted(rows, CELLS // COLUMNS[0], side="right"))
    columns = int(np.clip(CELLS // max(rows[fit - 1], 1), *COLUMNS)) if fit else 0
    shown = [next((n for n in names if n.partition("/")[0] == metric), None) for metric in order]
    drawn = [_map(name, runs, columns) | {"main": name in shown} for name in names[:fit]]
    return drawn, names[fit:]


def _drawable(series: Series) -> bool:
    return bool(series.axes) and len(series) > 0 and series.observed()


def _map(name: str, runs: Sequence[Run], columns: int) -> dict[str, Any]:
    have = [(i, run) for i, run in enumerate(runs) if name in run.series]
    series = have[0][1].series[name]
    worse = worse_end(have[0][1], series)
    panels = [_panel(i, run, run.series[name], columns, worse) for i, run in have]
    values = np.concatenate([panel["z"].ravel() for panel in panels])
    finite = values[np.isfinite(values)]
    low, high = _range(finite, worse)
    return {
        "title": metric_of(series) + (f" by {series.axes[0]}" if series.axes[0] != "layer" else ""),
        "unit": series.unit, "definition": without_formula(series.definition), "worse": worse, "axis": series.axes[0],
        "over": f"{'largest' if worse == 'high' else 'smallest'} over {series.axes[1]}s" if len(series.axes) > 1 else "",
        "inner": series.axes[1] if len(series.axes) > 1 else "",
        "log": spans_decades(finite), "low": low, "high": high, "low_text": number(low), "high_text": number(high),
        "panels": [panel | {"z": [rounded(row) for row in panel["z"]]} for panel in panels],
    }


def _range(finite: Float[np.ndarray, " n"], worse: Worse) -> tuple[float, float]:
    """From the least to the greatest; the worrying end at least a factor 2 off, so that noise looks like noise."""
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if low <= 0:
        return low, high
    return (low, max(high, min(2 * low, LARGEST))) if worse == "high" else (min(low, high / 2), high)


def _panel(index: int, run: Run, series: Series, columns: int, worse: Worse) -> dict[str, Any]:
    steps, values = thin_steps(series.steps, series.values, columns, worse)
    flat = values.reshape(*values.shape[:2], -1)
    z = worst(flat, worse).T
    labels = series.labels.get(series.axes[0]) or run.header.labels.get(series.axes[0]) or ()
    rows = list(labels) if len(labels) == z.shape[0] else [f"{series.axes[0]} {i}" for i in range(z.shape[0])]
    broken = np.isinf(z) | (np.isnan(z) & _nonfinite(run, series, steps).T)
    return {
        "run": index, "x": steps.tolist(), "rows": rows, "z": z,
        "broken": [[int(row), int(column)] for row, column in zip(*np.nonzero(broken), strict=True)],
        "who": _who(flat, worse).T.tolist() if flat.shape[2] > 1 else None,
    }


def _who(values: Float[np.ndarray, "step row inner"], worse: Worse) -> Int[np.ndarray, "step row"]:
    """Which entry of the inner axis is the worst."""
    empty = -np.inf if worse == "high" else np.inf
    filled = np.where(np.isnan(values), empty, values)
    return np.asarray((np.argmax if worse == "high" else np.argmin)(filled, axis=2))


def _nonfinite(run: Run, series: Series, steps: Int[np.ndarray, " column"]) -> Bool[np.ndarray, "column row"]:
    """Where the run counted elements that are not finite: there a NaN is no lack of observation."""
    out = np.zeros((len(steps), series.values.shape[1]), dtype=np.bool_)
    counts, layers = run.series.get("nonfinite_count/layer"), _layers(run, series)
    if counts is None or len(layers) != out.shape[1] or max(layers, default=-1) >= counts.values.shape[1]:
        return out
    found = np.nan_to_num(counts.values[:, layers]) > 0
    seen = np.isin(counts.steps, series.steps) & found.any(axis=1)
    columns = np.minimum(np.searchsorted(steps, counts.steps[seen]), len(steps) - 1)
    np.logical_or.at(out, columns, found[seen])
    return out


def _layers(run: Run, series: Series) -> list[int]:
    """The layer of each row; empty where rows are no layers."""
    if series.axes[0] == "layer":
        return list(range(series.values.shape[1]))
    calls = run.header.anatomy.attention_calls if run.header.anatomy is not None else ()
    layers = [call.layer for call in calls if call.layer is not None]
    return layers if series.axes[0] == "attention" and len(layers) == len(calls) else []
