"""Each incident up close, as plain data: its series before and after, the loss, and what moved first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stabilitylens.findings import Where
from stabilitylens.gravity import gravest_first, gravity
from stabilitylens.incidents import Incident
from stabilitylens.reports._curves import band, line
from stabilitylens.reports._series import place_of, spans_decades, worse_end, worst
from stabilitylens.run import Run, Series

if TYPE_CHECKING:
    from stabilitylens.explanation import Context
    from stabilitylens.report import Subject

#: incidents that are drawn up close, the gravest of all runs
DRAWN = 12
#: points before and after an incident: so many, or this share of its own where that is more
POINTS, SHARE = 40, 0.5
#: columns of pixels that one line of a window has at most
COLUMNS = 300


def windows(subjects: Sequence[Subject]) -> tuple[list[dict[str, Any]], int]:
    """The gravest incidents up close, and how many more there are."""
    happened = [(run, i, incident) for run, subject in enumerate(subjects) if subject.run is not None for i, incident in enumerate(subject.incidents)]
    leading = {id(incident) for subject in subjects for incident in gravest_first(subject.incidents)[:DRAWN]}
    ranked = sorted((each for each in happened if id(each[2]) in leading), key=lambda each: gravity(each[2]), reverse=True)
    drawn = [_window(run, i, subjects[run]) for run, i, _ in ranked[:DRAWN]]
    return [each for each in drawn if each["panels"]], len(happened) - len(drawn)


def _window(index: int, i: int, subject: Subject) -> dict[str, Any]:
    incident, run = subject.incidents[i], subject.run
    assert run is not None
    context = subject.contexts[i] if i < len(subject.contexts) else None
    first, last = _reach(run, incident)
    shown = [_panel(index, title, _cut(series, first, last), where, run) for title, series, where in _shown(run, incident, context)]
    panels = [panel for panel in shown if panel["lines"][0]["x"]]
    on = next((k for k, panel in enumerate(panels) if panel["title"] == incident.metric), None)
    return {"run": index, "incident": i, "from": first, "to": last, "panels": panels, "band": band(index, run, incident), "on": on}


def _reach(run: Run, incident: Incident) -> tuple[int, int]:
    """First and last step of the window."""
    series = _own(run, incident)
    steps = series.steps if series is not None and len(series) else np.array([incident.start_step, incident.end_step])
    first, last = int(np.searchsorted(steps, incident.start_step)), int(np.searchsorted(steps, incident.end_step, side="right")) - 1
    around = max(POINTS, int(SHARE * (last - first)))
    return int(steps[max(0, min(first, len(steps) - 1) - around)]), int(steps[min(len(steps) - 1, max(last, 0) + around)])


def _own(run: Run, incident: Incident) -> Series | None:
    """The series that an incident is of, or the loss where that is none that is drawn."""
    return next((run.series[name] for name in (incident.metric, "loss") if name in run.series and not run.series[name].axes), None)


def _shown(run: Run, incident: Incident, context: Context | None) -> Iterator[tuple[str, Series, Where]]:
    """The incident's own series, the loss, and what moved first, each once, with the place that is drawn."""
    names = [name for name in dict.fromkeys((incident.metric, "loss")) if name in run.series and not run.series[name].axes]
    yield from ((name, run.series[name], Where()) for name in names)
    moved = context.moved[0] if context is not None and context.moved else None
    if moved is not None and moved.series in run.series and moved.series not in names:
        series = run.series[moved.series]
        yield f"{moved.metric}, {moved.where}" if series.axes else moved.series, series, moved.where


def _cut(series: Series, first: int, last: int) -> Series:
    """The stretch from one step to another; no more of an array is read."""
    low, high = int(np.searchsorted(series.steps, first)), int(np.searchsorted(series.steps, last, side="right"))
    return replace(series, steps=series.steps[low:high], values=np.asarray(series.values[low:high], dtype=np.float64))


def _panel(index: int, title: str, series: Series, where: Where, run: Run) -> dict[str, Any]:
    values = place_of(series, where, run)
    while values.ndim > 1:
        values = worst(values, worse_end(run, series))
    return {"title": title, "unit": series.unit, "log": spans_decades(values), "lines": [line(index, series.steps, values, COLUMNS)]}
