"""Reads the files of a recording, session by session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tensorboard.compat.proto import event_pb2

from stabilitylens.arrayrecord import MAGIC
from stabilitylens.readers._arrays import ArrayFile, Block, is_arrays, read_arrays
from stabilitylens.readers._events import EventFile, read_events
from stabilitylens.readers._merge import Piece, Session, stack
from stabilitylens.run import Event
from stabilitylens.tags import HEADER_TAG, name_of
from stabilitylens.writers._protobuf import DASHBOARD, EVENT, HEADER, STEP, marker
from stabilitylens.writers._session import session_of

_MARK = marker(0)[:-1]


def is_ours(path: Path) -> bool:
    """Whether a file's content says that it belongs to a recording of ours."""
    with path.open("rb") as file:
        begin = file.read(1 << 20)
    return _MARK in begin or MAGIC in begin


def read_sessions(files: list[Path], notes: list[str]) -> list[Session]:
    """The sessions that these files hold, in order; what was skipped is added to the notes.

    Raises:
        OSError: a file cannot be read.
    """
    sessions: dict[int, Session] = {}
    # arrays first: of a scalar that both files hold, the event file has every step, and so counts
    for path in sorted(files, key=lambda file: (not is_arrays(file), file.name)):
        session = sessions.setdefault(session_of(path.name) or 0, Session())
        file = read_arrays(path) if is_arrays(path) else read_events(path)
        notes += damage(path, file)
        session.records += file.records - file.unread
        if isinstance(file, ArrayFile):
            _add_arrays(session, file)
        else:
            add_events(session, file)
    return [sessions[number] for number in sorted(sessions)]


def damage(path: Path, file: ArrayFile | EventFile) -> Iterator[str]:
    """A sentence on everything in a file that was skipped."""
    size = path.stat().st_size
    for begin, end in file.gaps:
        if end == size:
            yield f"{path.name} ends in an unfinished or damaged record, which was skipped (bytes {begin} to {end})"
        else:
            yield damaged(path, begin, end)
    if file.unread:
        yield f"{file.unread} records of {path.name} were skipped: a newer version of stabilitylens may read them"


def damaged(path: Path, begin: int, end: int) -> str:
    """The sentence on a range of bytes within a file that was skipped."""
    return f"a part of {path.name} is damaged and was skipped (bytes {begin} to {end})"


def _add_arrays(session: Session, file: ArrayFile) -> None:
    session.headers += file.headers
    session.restart = file.restart if file.restart is not None else session.restart
    for name, blocks in file.blocks.items():
        session.series[name] += _in_order(blocks)


def _in_order(blocks: list[Block]) -> list[Piece]:
    """An array's blocks, record by record in the order of the file where they alternate."""
    pieces = [Piece(block.steps, block.values, block.axes) for block in blocks]
    if len(blocks) == 1 or len({piece.values.ndim for piece in pieces}) > 1:
        return pieces
    order, whole = np.argsort(np.concatenate([block.order for block in blocks])), stack(pieces)
    return [Piece(whole.steps[order], whole.values[order], whole.axes)]


def add_events(session: Session, file: EventFile) -> None:
    """Take the points and events of an event file into a session."""
    restart = file.restart()
    session.restart = restart if restart is not None else session.restart
    for tag, points in file.scalars.items():
        if tag.kind == DASHBOARD:
            session.summaries[tag.tag].append(Piece(points.steps, points.values))
        elif tag.kind in (STEP, 0):
            name = (tag.name or name_of(tag.tag)) if tag.kind == STEP else tag.tag
            session.series[name].append(Piece(points.steps, points.values))
    for other in file.others:
        if other.kind == EVENT:
            session.events += _event(other.event)
        elif other.kind == HEADER:
            session.headers += _headers(other.event)


def _event(event: event_pb2.Event) -> Iterator[Event]:
    for value in event.summary.value:
        if value.tensor.string_val:
            text = value.tensor.string_val[0].decode("utf-8", "replace")
            yield Event(event.step, value.metadata.display_name, text)


def _headers(event: event_pb2.Event) -> Iterator[tuple[float, str]]:
    for value in event.summary.value:
        if value.tag == HEADER_TAG and value.tensor.string_val:
            yield event.wall_time, value.tensor.string_val[0].decode("utf-8", "replace")
