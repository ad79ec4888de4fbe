"""One frame of ``stabilitylens watch``: the loss, the worst layers, and what happened, in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stabilitylens.findings import Finding
from stabilitylens.incidents import Incident
from stabilitylens.report import Subject
from stabilitylens.reports._series import worse_end, worst
from stabilitylens.reports._sparkline import sparkline
from stabilitylens.reports._words import number, sentence
from stabilitylens.reports.terminal import STYLES
from stabilitylens.run import Run, Series

#: in this order, as far as they were recorded
CURVES = ("loss", "grad_norm", "grad_norm_clipped", "lr")
LAYERS = ("max_attn_logit", "attn_entropy_ratio", "resid_rms", "resid_grad_norm", "update_rms", "grad_norm_clipped/layer")
#: incidents and findings that are listed, the latest and the worst
LISTED = 6


def frame(subject: Subject, width: int) -> RenderableType:
    """What there is to see of a run now.

    Args:
        subject: the run, with its incidents and findings.
        width: of the terminal, in columns.
    """
    assert subject.run is not None
    run, room = subject.run, max(10, min(60, width - 44))
    parts: list[RenderableType] = [_head(subject), _curves(run, room)]
    rows = [row for name in LAYERS if (row := _layers(run, name, max(8, room - 20))) is not None]
    if rows:
        parts.append(_table(("worst layer", "", "now", "where"), rows))
    if subject.incidents:
        latest = sorted(subject.incidents, key=lambda incident: incident.peak_step)[-LISTED:]
        parts.append(_table(("incident", "step", "what happened"), map(_incident, reversed(latest))))
    fired = [group[0] for group in subject.fired_by_rule()][:LISTED]
    if fired:
        parts.append(_table(("finding", "what"), map(_finding, fired)))
    return Group(*parts)


def _head(subject: Subject) -> Text:
    run = subject.run
    assert run is not None
    last = max((int(series.steps[-1]) for series in run.values() if len(series)), default=0)
    times = run["step_time"].values[-50:] if "step_time" in run else np.array([])
    pace = f", {number(float(np.nanmedian(times)))} s a step" if np.isfinite(times).any() else ""
    severities = [f.severity or "info" for f in subject.by_verdict("fired")] + [i.severity for i in subject.incidents]
    style = STYLES[next((name for name in STYLES if name in severities), "info")] if severities else "bold green"
    notes = "".join(f"\n{note}" for note in run.notes)
    return Text.assemble((subject.name, "bold"), f"  step {last:,}{pace}\n", (sentence(subject.headline), style), notes)


def _curves(run: Run, room: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name in CURVES:
        series = run.series.get(name)
        if series is not None and not series.axes and series.observed():
            shown = np.where(np.isnan(series.values), np.inf, series.values)
            table.add_row(Text(name), Text(sparkline(shown, room)), Text(number(float(series.values[-1])), style="bold"))
    return table


def _layers(run: Run, name: str, room: int) -> tuple[Text, ...] | None:
    """The curve of the worst layer, its last value, and which layer that is."""
    if name not in run or not (series := run[name]).axes or not series.observed():
        return None
    worse = worse_end(run, series)
    flat = series.values.reshape(*series.values.shape[:2], -1)
    last = worst(flat[-1], worse)
    if np.isnan(last).all():
        return None
    row = int(np.nanargmax(last) if worse == "high" else np.nanargmin(last))
    label = Text(series.name.partition("/")[0])
    return label, Text(sparkline(worst(flat[:, row], worse), room, worse)), Text(number(float(last[row])), style="bold"), _place(series, row)


def _place(series: Series, row: int) -> Text:
    names = series.labels.get(series.axes[0], ())
    return Text(f"{series.axes[0]} {row}" + (f" {names[row]}" if row < len(names) else ""), style="dim")


def _incident(incident: Incident) -> tuple[Text, ...]:
    kind = Text(incident.kind.replace("_", " "), style=STYLES[incident.severity])
    return kind, Text(str(incident.peak_step)), Text(incident.explanation)


def _finding(finding: Finding) -> tuple[Text, ...]:
    severity = finding.severity or "info"
    return Text(f"{finding.code} {finding.name}", style=STYLES[severity]), Text(finding.message)


def _table(columns: Iterable[str], rows: Iterable[tuple[Text, ...]]) -> Table:
    """All cells are text: what a log calls its series is never read as markup."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
