"""Reads everything in a TensorBoard event file: all points, past any damage, events of one shape at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from jaxtyping import Float, Int
from tensorboard.compat.proto import event_pb2

from stabilitylens.readers._framing import Bytes, rows, scan
from stabilitylens.readers._wire import Rows, Template, Unlike, marker_kind, template

#: after so many shapes among events of one length, the rest are read one by one
_SHAPES = 16
#: bytes of events that are compared at once
_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class Tag:
    """A series of an event file: whose events it is in, its tag, its display name where it has one."""

    kind: int
    tag: str
    name: str


@dataclass(frozen=True)
class Points:
    """A series in the order of the file: steps, seconds since 1970, values as float64."""

    steps: Int[np.ndarray, " point"]
    walls: Float[np.ndarray, " point"]
    values: Float[np.ndarray, " point"]


@dataclass(frozen=True)
class Other:
    """An event that is no plain scalar, with the kind of ours that it is (0 for others')."""

    kind: int
    event: event_pb2.Event


@dataclass
class EventFile:
    """What an event file holds.

    Attributes:
        others: events that hold text, tensors, the file's version, …, in the order of the file.
        gaps: ranges of bytes that are damaged.
        records: number of undamaged records; unread: how many of them are no events.
    """

    scalars: dict[Tag, Points] = field(default_factory=dict)
    others: list[Other] = field(default_factory=list)
    gaps: tuple[tuple[int, int], ...] = ()
    records: int = 0
    unread: int = 0

    def restart(self) -> int | None:
        """The step at which the session says that it begins, superseding what came before."""
        starts = [o.event.step for o in self.others if o.event.session_log.status == event_pb2.SessionLog.START]
        return starts[-1] if starts else None

    def ours(self) -> bool:
        """Whether any event is ours."""
        return any(tag.kind for tag in self.scalars) or any(other.kind for other in self.others)


def mapped(path: Path) -> Bytes:
    """A file's bytes, mapped into memory and not to be written to."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)


def read_events(path: Path) -> EventFile:
    """Read an event file.

    Raises:
        OSError: it cannot be read.
    """
    data = mapped(path)
    frames = scan(data)
    out = EventFile(gaps=frames.gaps, records=len(frames.starts))
    parts: dict[Tag, list[tuple[np.ndarray, Points]]] = defaultdict(list)
    single: list[int] = []
    for which in _of_one_length(frames.lengths):
        length = int(frames.lengths[which[0]])
        single += _by_shape(rows(data, frames.starts[which], length), which, parts)
    for i in sorted(single):
        record = data[frames.starts[i]:frames.starts[i] + frames.lengths[i]].tobytes()
        _read_alone(record, i, parts, out)
    out.scalars = {tag: _joined(some) for tag, some in sorted(parts.items(), key=lambda item: item[1][0][0][0])}
    return out


def _of_one_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Records of one length, in portions that fit in memory."""
    order = np.argsort(lengths, kind="stable")
    for which in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if len(order) else []:
        count = max(1, _AT_ONCE // max(1, int(lengths[which[0]])))
        for i in range(0, len(which), count):
            yield which[i:i + count]


def _by_shape(events: Rows, which: np.ndarray, parts: dict) -> list[int]:
    """Read events of one length, shape by shape; returns the records that have to be read alone."""
    alone: list[int] = []
    pending = np.arange(len(events))
    for _ in range(_SHAPES):
        if not len(pending):
            break
        try:
            shape = template(events[pending[0]].tobytes())
        except Unlike:
            alone.append(int(which[pending[0]]))
            pending = pending[1:]
            continue
        pending = _take(events, pending, which, shape, parts)
    alone += which[pending].tolist()
    return alone


def _take(events: Rows, pending: np.ndarray, which: np.ndarray, shape: Template, parts: dict) -> np.ndarray:
    """Read all events whose numbers are where the shape has them, tag by tag; returns those that are left."""
    alike = _alike(events, pending, shape)
    other, pending = pending[~alike], pending[alike]
    shared = events[pending] & shape.keep
    _, first, group = np.unique(_hashes(shared), return_index=True, return_inverse=True)
    left = [other]
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    for example, some in zip(first.tolist(), members, strict=True):
        try:
            form = template(events[pending[example]].tobytes())
        except Unlike:
            left.append(pending[some])
            continue
        same = np.array_equal(form.keep, shape.keep)
        good = (shared[some] == shared[example]).all(axis=1) if same else np.zeros(len(some), dtype=bool)
        left.append(pending[some[~good]])
        _keep(events[pending[some[good]]], which[pending[some[good]]], form, parts)
    return np.sort(np.concatenate(left))


def _alike(events: Rows, pending: np.ndarray, shape: Template) -> np.ndarray:
    """Which events have their numbers where the first of them has."""
    frame = shape.frame()
    where = np.flatnonzero(frame)
    rows = events[pending][:, where] & frame[where]
    return np.asarray((rows == rows[0]).all(axis=1))


def _hashes(events: Rows) -> np.ndarray:
    width = -(-events.shape[1] // 8) * 8
    words = np.zeros((len(events), width), dtype=np.uint8)
    words[:, :events.shape[1]] = events
    odd = np.random.default_rng(0).integers(1 << 63, size=width // 8, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return np.asarray((words.view(np.uint64) * odd).sum(axis=1, dtype=np.uint64))


def _keep(events: Rows, order: np.ndarray, form: Template, parts: dict) -> None:
    if not len(events):
        return
    steps, walls = form.steps(events), form.walls(events)
    for value in form.values:
        points = Points(steps, walls, form.numbers(events, value))
        parts[Tag(form.kind, value.tag, value.name)].append((order, points))


def _read_alone(record: bytes, i: int, parts: dict, out: EventFile) -> None:
    try:
        _keep(np.frombuffer(record, np.uint8)[None], np.array([i]), template(record), parts)
        return
    except Unlike:
        pass
    try:
        out.others.append(Other(marker_kind(record), event_pb2.Event.FromString(record)))
    except DecodeError:
        out.unread += 1


def _joined(parts: list[tuple[np.ndarray, Points]]) -> Points:
    order = np.argsort(np.concatenate([o for o, _ in parts]), kind="stable")
    columns = (np.concatenate([getattr(p, name) for _, p in parts])[order] for name in ("steps", "walls", "values"))
    return Points(*columns)
