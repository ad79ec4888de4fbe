"""A recording as it stands: its header, scalars, and arrays that stay in the file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.dashboard._files import ArrayFollower, EventFollower
from stabilitylens.header import Header, Worse
from stabilitylens.readers._arrays import is_arrays
from stabilitylens.readers._merge import Piece, Session, join, split
from stabilitylens.readers._sessions import add_events, damaged
from stabilitylens.readers.recording import files_of
from stabilitylens.run import Event, Run, Series
from stabilitylens.writers._session import session_of

#: bytes of an array that are brought into memory at a time
CHUNK = 1 << 24


@dataclass(frozen=True)
class Track:
    """A series whose values may stay in the file: pieces with steps that increase throughout."""

    name: str
    axes: tuple[str, ...]
    pieces: tuple[Piece, ...]

    @cached_property
    def steps(self) -> Int[np.ndarray, " step"]:
        """All steps."""
        return np.concatenate([piece.steps for piece in self.pieces])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.pieces[-1].values.shape[1:]

    def chunks(self, begin: int = 0, end: int | None = None) -> Iterator[Float[np.ndarray, "step *axes"]]:
        """The samples of a range by their index, some megabytes at a time."""
        end, at = len(self.steps) if end is None else end, 0
        count = max(1, CHUNK // (4 * max(1, int(np.prod(self.shape)))))
        for piece in self.pieces:
            low, high = max(begin - at, 0), min(end - at, len(piece.steps))
            for first in range(low, high, count):
                yield piece.values[first:min(first + count, high)]
            at += len(piece.steps)

    def at(self, *where: int) -> Float[np.ndarray, " step"]:
        """One entry of all axes over all steps, in memory."""
        return np.concatenate([np.moveaxis(piece.values, 0, -1)[where] for piece in self.pieces], axis=-1)


@dataclass
class Snapshot:
    """What was read of a recording up to now."""

    version: str
    header: Header
    tracks: dict[str, Track] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    superseded: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def worse(self, name: str) -> Worse:
        """The worrying end of a series."""
        meta = self.header.metrics.get(name.partition("/")[0])
        return meta.worse if meta is not None else "high"

    def labels(self, axis: str) -> tuple[str, ...]:
        """Names of the entries of an axis."""
        return self.header.labels.get(axis, ())

    def run(self, path: str, every: dict[str, int] | None = None) -> Run:
        """As a run for the rules and detectors, of an array every so many samples."""
        series = {name: _series(track, self.header, (every or {}).get(name, 1)) for name, track in self.tracks.items()}
        return Run(path, series, self.header, "recording", self.events, notes=list(self.notes))


def _series(track: Track, header: Header, every: int) -> Series:
    meta = header.metrics.get(track.name.partition("/")[0])
    values = [piece.values for piece in track.pieces]
    whole = values[0] if len(values) == 1 else np.concatenate(values)
    whole = whole if track.axes else whole.astype(np.float64)
    labels = {axis: header.labels[axis] for axis in track.axes if axis in header.labels}
    about = (meta.unit, meta.definition) if meta else ("", "")
    return Series(track.name, track.steps[::every], whole[::every], track.axes, labels, *about)


class Recording:
    """Follows the files of one recording."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._files: dict[Path, ArrayFollower | EventFollower] = {}
        self._snapshot = Snapshot("", Header())

    def look(self) -> Snapshot:
        """What there is now.

        Raises:
            OSError: a file cannot be read.
        """
        with self.lock:
            grown = self._grow()
            if grown or not self._snapshot.version:
                self._snapshot = self._assemble()
            return self._snapshot

    def stamp(self) -> str:
        """The version that a look would find, from the files' sizes alone.

        Raises:
            OSError: a file cannot be read.
        """
        sizes = [path.stat().st_size for path in files_of(self.path)]
        return f"{len(sizes)}-{sum(sizes)}"

    def release(self) -> None:
        """Let go of what was mapped into memory."""
        for file in self._files.values():
            if isinstance(file, ArrayFollower):
                file.release()

    def _grow(self) -> bool:
        paths = files_of(self.path)
        kept = {path: file for path, file in self._files.items() if path in paths and file.size <= path.stat().st_size}
        changed = len(kept) < len(self._files)
        self._files = {path: kept.get(path) or _follower(path) for path in paths}
        return any([file.grow() for file in self._files.values()]) or changed

    def _assemble(self) -> Snapshot:
        sessions: dict[int, Session] = {}
        for path, file in sorted(self._files.items(), key=lambda item: isinstance(item[1], EventFollower)):
            _add(sessions.setdefault(session_of(path.name) or 0, Session()), file)
        ordered = [sessions[number] for number in sorted(sessions)]
        parts = split(ordered)
        pieces: dict[str, list[Piece]] = {}
        for kept, _ in parts:
            for name, some in kept.series.items():
                pieces.setdefault(name, []).extend(some)
        tracks = [_track(name, some) for name, some in pieces.items()]
        return Snapshot(
            version=f"{len(self._files)}-{sum(file.size for file in self._files.values())}",
            header=_header(ordered),
            tracks={t.name: t for t in sorted(tracks, key=lambda t: len(t.axes) > 0)},
            events=sorted((event for kept, _ in parts for event in kept.events), key=lambda event: event.step),
            superseded=[_span(lost) for _, lost in parts if lost.series],
            notes=[
                damaged(path, *span) for path, file in self._files.items() for span in file.damaged
            ],
        )


def _follower(path: Path) -> ArrayFollower | EventFollower:
    return ArrayFollower(path) if is_arrays(path) else EventFollower(path)


def _add(session: Session, file: ArrayFollower | EventFollower) -> None:
    if isinstance(file, EventFollower):
        for part in file.files:
            add_events(session, part)
        return
    session.headers += file.headers
    session.restart = file.restart if file.restart is not None else session.restart
    for name, pieces in file.pieces().items():
        session.series[name] += pieces


def _track(name: str, pieces: list[Piece]) -> Track:
    """Mapped where the pieces follow each other, as they nearly always do; else put in order in memory."""
    alike = [piece for piece in pieces if piece.values.ndim == pieces[0].values.ndim]
    ends = [step for piece in alike for step in (piece.steps[0], piece.steps[-1])]
    inside = all(bool((np.diff(piece.steps) > 0).all()) for piece in alike)
    after = all(a < b for a, b in zip(ends[1::2], ends[2::2], strict=False))
    if not (inside and after and len({piece.values.shape[1:] for piece in alike}) == 1):
        whole = join(alike)
        alike = [replace(whole, values=np.asarray(whole.values))]
    return Track(name, alike[-1].axes, tuple(alike))


def _header(sessions: list[Session]) -> Header:
    for text in reversed([text for session in sessions for _, text in sorted(session.headers, key=lambda h: h[0])]):
        try:
            return Header.from_json(text)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return Header()


def _span(lost: Session) -> tuple[int, int]:
    steps = [int(step) for some in lost.series.values() for piece in some for step in piece.steps[[0, -1]]]
    return min(steps), max(steps)
