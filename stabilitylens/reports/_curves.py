"""Curves as plain data for the page: scalars over the steps, and the line that a finding is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.findings import Finding
from stabilitylens.gravity import gravest_first
from stabilitylens.incidents import Incident
from stabilitylens.reports._envelope import envelope
from stabilitylens.reports._series import spans_decades, trace_of
from stabilitylens.reports._words import rounded, without_formula
from stabilitylens.run import Run, Series

if TYPE_CHECKING:
    from stabilitylens.report import Subject

#: columns of pixels that a curve has at most, over all lines of a figure
COLUMNS = 2000
#: and those of all figures together, so that the page of a hundred series is still one that opens at once
ALL = 30_000

#: incidents that are marked on a curve, the gravest
MARKED = 60

#: shown open, in this order; every other scalar is one click away
MAIN = ("loss", "grad_norm", "grad_norm_clipped")


def curves(subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    """One figure a scalar, all runs on the same axes, with the incidents on it."""
    runs = [subject.run for subject in subjects if subject.run is not None]
    names = list(dict.fromkeys(name for run in runs for name, series in run.series.items() if _drawable(series)))
    names.sort(key=lambda name: MAIN.index(name) if name in MAIN else len(MAIN))
    columns = min(COLUMNS, ALL // max(1, len(names)))
    return [_curve(name, subjects, columns) for name in names]


def _drawable(series: Series) -> bool:
    return not series.axes and series.observed()


def _has_before_clipping(subjects: Sequence[Subject]) -> bool:
    return all(s.run is not None and "grad_norm" in s.run.series for s in subjects)


def _curve(name: str, subjects: Sequence[Subject], columns: int) -> dict[str, Any]:
    have = [(i, s) for i, s in enumerate(subjects) if s.run is not None and name in s.run.series]
    series = [(i, subject.run.series[name]) for i, subject in have if subject.run is not None]
    return {
        "title": name,
        "unit": series[0][1].unit,
        "definition": without_formula(series[0][1].definition),
        "main": name in MAIN and not (name == "grad_norm_clipped" and _has_before_clipping(subjects)),
        "log": spans_decades(np.concatenate([s.values for _, s in series])),
        "lines": [line(i, s.steps, s.values, max(1, columns // len(series))) for i, s in series],
        "bands": _bands(name, have),
    }


def _bands(name: str, have: Sequence[tuple[int, Subject]]) -> list[dict[str, Any]]:
    """The gravest incidents of one series, in all runs."""
    owner = {id(incident): (i, subject.run) for i, subject in have for incident in subject.incidents if incident.metric == name}
    happened = [incident for _, subject in have for incident in subject.incidents if id(incident) in owner]
    return [band(*owner[id(incident)], incident) for incident in gravest_first(happened)[:MARKED]]


def band(index: int, run: Run | None, incident: Incident) -> dict[str, Any]:
    """An incident on a curve, with the value at its peak; None where that is not finite."""
    series = run.series.get(incident.metric) if run is not None else None
    known = series is not None and not series.axes and 0 <= incident.peak_index < len(series)
    return {
        "run": index, "kind": incident.kind.replace("_", " "), "severity": incident.severity,
        "from": int(incident.start_step), "to": int(incident.end_step), "peak": int(incident.peak_step),
        "y": rounded(series.values[incident.peak_index : incident.peak_index + 1])[0] if series is not None and known else None,
        "text": incident.explanation,
    }


def line(
    run: int, steps: Int[np.ndarray, " step"], values: Float[np.ndarray, " step"], columns: int
) -> dict[str, Any]:
    """One line; what is not finite is a gap in it, and stands in ``broken`` by its steps."""
    x, y = envelope(steps, values, columns)
    return {"run": run, "x": x.tolist(), "y": rounded(y), "broken": x[~np.isfinite(y)].tolist()}


def evidence(finding: Finding, own: int, runs: Sequence[Run]) -> dict[str, Any] | None:
    """The finding's metric at the finding's place, in its own run and in the others, with the threshold."""
    trace = trace_of(finding, runs[own])
    if trace is None:
        return None
    others = [(i, trace_of(finding, run)) for i, run in enumerate(runs) if i != own]
    traces = [(own, trace)] + [(i, other) for i, other in others if other is not None and other.name == trace.name]
    return {
        "title": trace.name,
        "unit": runs[own][trace.name].unit,
        "log": spans_decades(np.concatenate([t.values for _, t in traces])),
        "threshold": trace.threshold,
        "span": [int(step) for step in finding.where.steps] if finding.where.steps else None,
        "lines": [line(i, t.steps, t.values, max(1, 400 // len(traces))) for i, t in traces],
        "bands": [],
    }
