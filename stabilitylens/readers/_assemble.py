"""Makes a Run of the sessions of somebody else's log, under our names where the names are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from stabilitylens.readers._large import every
from stabilitylens.readers._merge import Piece, Session, join, split
from stabilitylens.readers._names import known, tells
from stabilitylens.run import Event, Run, Series

#: what a series is called whose own name would say that it is something of ours
AS_LOGGED = "{} (as logged)"
#: a run without a loss has a series of so many points
FEW = 3
#: a gradient norm that never moves over so many points is the clip value or a placeholder. *Heuristic*.
FROZEN = 3


def our_names(columns: Mapping[str, np.ndarray], loss_key: str | None, notes: list[str]) -> dict[str, tuple[str, float]]:
    """Name and factor of each column: ours where its own is known, else its own.

    Args:
        columns: the values by the log's own name.
        loss_key: the column that becomes ``loss``.
        notes: a gradient norm that is none is noted here.
    """
    best: dict[str, tuple[int, str, float]] = {}
    for key, values in columns.items():
        found = known(key)
        if found is None or key == loss_key or not len(values):
            continue
        ours, rank, factor = found
        if ours == "grad_norm" and _is_frozen(key, values, notes):
            continue
        if ours not in best or rank < best[ours][0]:
            best[ours] = rank, key, factor
    names = {key: (ours, factor) for ours, (_, key, factor) in best.items()}
    if loss_key is not None:
        names[loss_key] = "loss", 1.0
    taken = {ours for ours, _ in names.values()} | {"loss", "grad_norm"}
    for key in columns:
        names.setdefault(key, (AS_LOGGED.format(key) if key in taken else key, 1.0))
    return names


def _is_frozen(key: str, values: np.ndarray, notes: list[str]) -> bool:
    if len(values) < FROZEN or not every(lambda some: some == values[0], values):
        return False
    what = "a placeholder" if values[0] == 0 else "the clip value, or rounded"
    notes.append(f"{key} is {values[0]:g} throughout ({what}): it is not taken for the gradient norm")
    return True


def assemble(path: Path, form: str, sessions: list[Session], loss_key: str | None, notes: list[str]) -> Run:
    """One run of its sessions, oldest first; a session supersedes the earlier ones from its ``restart`` on."""
    parts = split(sessions)
    run = _run(path, form, [kept for kept, _ in parts], loss_key)
    run.superseded = [_run(path, form, [lost], loss_key) for _, lost in parts if lost.series]
    run.notes = list(notes)
    for session in sessions[1:]:
        if session.restart is not None:
            run.events.append(Event(int(session.restart), "resume", f"the log goes back to step {session.restart}"))
    run.events.sort(key=lambda event: event.step)
    if run.superseded:
        run.notes.append("steps that were run again after a resume count once; the earlier ones are in run.superseded")
    return run


def _run(path: Path, form: str, sessions: list[Session], loss_key: str | None) -> Run:
    pieces: dict[str, list[Piece]] = {}
    for session in sessions:
        for name, some in session.series.items():
            pieces.setdefault(name, []).extend(some)
    joined = {name: join(some) for name, some in pieces.items()}
    order = sorted(joined, key=lambda name: name != "loss")
    series = {name: Series(name, joined[name].steps, joined[name].values) for name in order}
    events = [event for session in sessions for event in session.events]
    return Run(str(path), series, format=form, events=events, loss_key=loss_key if "loss" in series else None)


def worth_reading(runs: list[Run]) -> list[Run]:
    """The runs that have a loss; where none has, those that have a series that is called as a training's are."""
    return [run for run in runs if "loss" in run.series] or [run for run in runs if any(len(series) >= FEW and tells(name) for name, series in run.items())]


def with_loss(run: Run, key: str) -> Run | None:
    """The run with another series as its loss; None where it has no series of that name."""
    if key == run.loss_key or (key == "loss" and run.loss_key is None and "loss" in run.series):
        return run
    found = next((name for name in (key, AS_LOGGED.format(key)) if name in run.series), None)
    if found is None or run.series[found].axes:
        return None
    series = dict(run.series)
    chosen = replace(series.pop(found), name="loss")
    if "loss" in series:
        back = run.loss_key if run.loss_key not in (None, "loss", *series) else AS_LOGGED.format("loss")
        series[str(back)] = replace(series.pop("loss"), name=str(back))
    return replace(run, series={"loss": chosen} | series, loss_key=key)
