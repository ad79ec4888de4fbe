"""Reads TensorBoard event files that other tools wrote."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from google_crc32c import value as crc32c

from stabilitylens.errors import BadInput
from stabilitylens.readers._assemble import assemble, our_names, worth_reading
from stabilitylens.readers._framing import scan
from stabilitylens.readers._loss import choose_loss
from stabilitylens.readers._merge import Piece, Session
from stabilitylens.readers._names import EVALUATION, TRAINING, normal
from stabilitylens.readers._reader import reader
from stabilitylens.readers._scalars import Scalars, Track, read_scalars
from stabilitylens.readers._source import head
from stabilitylens.readers._stretches import Stretches, stretches
from stabilitylens.readers._unreadable import why_unreadable
from stabilitylens.run import Run
from stabilitylens.tfrecord import BEFORE, mask

#: tags of what every Lightning run has, whether it logs anything or not
_NO_SERIES = frozenset(("hp_metric", "epoch"))


def is_events(path: Path) -> bool:
    """Whether a file begins with a record, by its checksum; a damaged one whether its name says so."""
    begin = head(path)
    if len(begin) < BEFORE:
        return False
    length, crc = struct.unpack_from("<QI", begin)
    if mask(crc32c(begin[:8])) == crc:
        return True
    return "tfevents" in path.name and len(scan(np.frombuffer(begin, dtype=np.uint8)).starts) > 0


def files_of(path: Path) -> list[tuple[str, Path]]:
    """The event files of a run, in the order of their names, and what is put before their tags.

    A folder's own; where it has none, those of its folder ``train`` and, as ``validation/…``, of that and its like.
    """
    if path.is_file():
        return [("", path)] if is_events(path) else []
    own = [("", file) for file in _below(path)]
    if own:
        return own
    parts = {name: _below(path / name) for name in sorted(os.listdir(path)) if (path / name).is_dir()}
    parts = {name: files for name, files in parts.items() if files}
    kinds = {name: "train" if normal(name) in TRAINING else "eval" if normal(name) in EVALUATION else "" for name in parts}
    if "train" not in kinds.values() or "" in kinds.values():
        return []
    order = sorted(parts, key=lambda name: kinds[name] != "train")
    return [("" if kinds[name] == "train" else f"{name}/", file) for name in order for file in parts[name]]


def _below(folder: Path) -> list[Path]:
    some = [folder / name for name in sorted(os.listdir(folder)) if "tfevents" in name]
    return [path for path in some if path.is_file() and is_events(path)]


@reader(name="tensorboard_events", sniff=lambda path: 0.9 if files_of(path) else 0.0, most=0.9)
def read(path: Path) -> list[Run]:
    """TensorBoard event files of any tool: a file, or a folder with the files of a run.

    Every point is read, past any damage. The loss is chosen by its tag; all other tags keep their names. Files of one
    folder follow each other in time: where one goes back a little, the run was resumed, and what came before is kept in
    ``run.superseded``, whether the file asks for that (``SessionLog.START``) or not; where one starts over, it is another
    run. Folders ``train`` and ``validation`` side by side are one run. Folders below are runs of their own.
    """
    runs = list(_runs(path))
    if path.is_dir():
        for folder in sorted(inner for inner in path.rglob("*") if inner.is_dir() and _below(inner)):
            if not any(file.parent == folder for _, file in files_of(path)):
                runs += _runs(folder)
    if not (worth := worth_reading(runs)):
        raise BadInput(why_unreadable(path))
    return worth


def _runs(path: Path) -> Iterator[Run]:
    scalars = read_scalars(files_of(path))
    tracks = scalars.tracks
    if set(tracks) <= _NO_SERIES:
        return
    values = {tag: track.values for tag, track in tracks.items()}
    loss_key = choose_loss(values)
    lead = tracks[loss_key or max(tracks, key=lambda tag: len(values[tag]))]
    layout = stretches(lead.steps, lead.values, None)
    notes = [*scalars.notes, *layout.notes]
    names = our_names(values, loss_key, notes)
    found = list(_by_run(scalars, names, lead, layout))
    for i, sessions in enumerate(found):
        run = assemble(path, "tensorboard_events", sessions, loss_key, notes)
        run.path += f"#{i + 1}" if len(found) > 1 else ""
        yield run


def _by_run(scalars: Scalars, names: dict[str, tuple[str, float]], lead: Track, layout: Stretches) -> Iterator[list[Session]]:
    sessions: dict[int, Session] = {}
    for tag, track in scalars.tracks.items():
        name, factor = names[tag]
        before = np.clip(np.searchsorted(lead.order, track.order, side="right") - 1, 0, None)
        steps, keep, number = track.steps + layout.shift[before], np.ones(len(before), dtype=bool), layout.session[before]
        if track is lead:
            steps, keep, number = layout.steps, layout.keep, layout.session
        for session in np.unique(number[keep]).tolist():
            some = keep & (number == session)
            sessions.setdefault(session, Session()).series[name].append(Piece(steps[some], track.values[some] * factor))
    for run in np.unique(layout.run[layout.keep]):
        mine = np.unique(layout.session[(layout.run == run) & layout.keep]).tolist()
        for session in mine[1:]:
            first = int(np.argmax((layout.session == session) & layout.keep))
            said = scalars.said(float(lead.order[first]))
            sessions[session].restart = min(int(layout.steps[first]), said if said is not None else int(layout.steps[first]))
        yield [sessions[session] for session in mine]
