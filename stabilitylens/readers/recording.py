"""Reads what ``stabilitylens.attach`` recorded."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from stabilitylens.errors import BadInput
from stabilitylens.header import SCHEMA, Header
from stabilitylens.readers._merge import Piece, Session, by_axes, join, split
from stabilitylens.readers._reader import reader
from stabilitylens.readers._sessions import is_ours, read_sessions
from stabilitylens.run import Run, Series
from stabilitylens.writers._session import FOLDER, session_of


def files_of(path: Path) -> list[Path]:
    """The files of the recording at a path: a log directory, its ``stabilitylens`` folder, or one file."""
    if path.is_file():
        return [path] if is_ours(path) else []
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    found = [folder / name for name in sorted(os.listdir(folder))]
    files = [file for file in found if file.is_file() and (session_of(file.name) is not None or "tfevents" in file.name)]
    return files if folder.name == FOLDER or any(map(is_ours, files)) else []


@reader(name="recording", sniff=lambda path: bool(files_of(path)))
def read(path: Path) -> Run:
    """A recording made by ``stabilitylens.attach``.

    Give the log directory, its ``stabilitylens`` folder, or one file of it.

    Every point of every session is read. Scalars are float64 that hold float32 values, arrays are
    float32, mapped into memory where the file allows; a value that was not observed is NaN. A
    damaged record is skipped and the rest is read; ``run.notes`` says what was skipped. Where a
    session resumed at a step that an earlier one had passed, the earlier one's points from there on
    are in ``run.superseded``. Tags that are not ours are kept under their own names.
    """
    notes: list[str] = []
    sessions = read_sessions(files_of(path), notes)
    if not any(session.records for session in sessions):
        raise BadInput(f"{path} holds a recording in which no record can be read; record the run again")
    header = _header(sessions, notes)
    parts = split(sessions)
    run = _run(path, [kept for kept, _ in parts], header)
    run.superseded = [_run(path, [lost], header) for _, lost in parts if lost.series or lost.events]
    run.notes = notes + [_superseded(part) for part in run.superseded]
    return run


def _header(sessions: list[Session], notes: list[str]) -> Header:
    """The last header that can be read; later sessions before earlier ones."""
    ordered = [text for session in sessions for _, text in sorted(session.headers, key=lambda h: h[0])]
    for text in reversed(ordered):
        try:
            header = Header.from_json(text)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        if header.schema > SCHEMA:
            notes.append(f"the recording has schema {header.schema}, newer than {SCHEMA}: update stabilitylens to read all")
        return header
    notes.append("no header could be read: names and axes come from the records themselves")
    return Header()


def _run(path: Path, sessions: list[Session], header: Header) -> Run:
    series = _collect([session.series for session in sessions])
    summaries = _collect([session.summaries for session in sessions])
    return Run(
        path=str(path),
        series={name: _series(name, piece, header) for name, piece in series.items()},
        header=header,
        format="recording",
        events=sorted((event for session in sessions for event in session.events), key=lambda event: event.step),
        summaries={name: _series(name, piece, header) for name, piece in summaries.items()},
    )


def _collect(sessions: list[dict[str, list[Piece]]]) -> dict[str, Piece]:
    """Each series over all sessions, scalars first."""
    pieces: dict[str, list[Piece]] = {}
    for session in sessions:
        for name, some in session.items():
            pieces.setdefault(name, []).extend(some)
    joined = {name: join(some) for name, some in by_axes(pieces).items()}
    return dict(sorted(joined.items(), key=lambda item: item[1].values.ndim > 1))


def _series(name: str, piece: Piece, header: Header) -> Series:
    meta = header.metrics.get(name.partition("/")[0])
    values = piece.values.astype(np.float64) if piece.values.ndim == 1 else piece.values
    return Series(
        name, piece.steps, values, piece.axes,
        labels={axis: header.labels[axis] for axis in piece.axes if axis in header.labels},
        unit=meta.unit if meta else "",
        definition=meta.definition if meta else "",
    )


def _superseded(part: Run) -> str:
    steps = [int(step) for series in part.series.values() for step in series.steps[[0, -1]]]
    steps += [event.step for event in part.events]
    return (
        f"steps {min(steps)} to {max(steps)} of an earlier session were recorded again after a resume; "
        "the earlier ones are kept in run.superseded"
    )
