"""The files of a recording that is still being written: each look reads only what was appended."""

from __future__ import annotations

import json
import mmap
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stabilitylens.arrayrecord import HEADER, SAMPLE, SESSION, VERSION, Entry, Prefix, entries, unpack_prefix
from stabilitylens.readers._events import EventFile, Points, Tag, read_events
from stabilitylens.readers._framing import scan
from stabilitylens.readers._merge import Piece
from stabilitylens.writers._protobuf import DASHBOARD

#: so many pieces of an event file are put together into one
PIECES = 32


@dataclass
class Stretch:
    """Samples of one layout, evenly spaced in the file."""

    first: int
    stride: int = 0
    steps: list[int] = field(default_factory=list)

    def takes(self, start: int) -> bool:
        """Whether a record there continues it."""
        return len(self.steps) == 1 or start == self.first + self.stride * len(self.steps)

    def add(self, start: int, step: int) -> None:
        """Take a record."""
        self.stride = start - self.first if len(self.steps) == 1 else self.stride
        self.steps.append(step)


class ArrayFollower:
    """An array file; every record's checksum is verified once, when it is first seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = self._end = 0
        self.damaged: list[tuple[int, int]] = []
        self.headers: list[tuple[float, str]] = []
        self.restart: int | None = None
        self._layouts: dict[tuple[bytes, int], list[Stretch]] = {}
        self._data: mmap.mmap | None = None

    def grow(self) -> bool:
        """Read what was appended; whether that was anything."""
        size = self.path.stat().st_size
        if size == self.size:
            return False
        self.size = size
        with self.path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        tail = np.frombuffer(self._data, np.uint8)[self._end:]
        frames = scan(tail)
        for start, length in zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True):
            prefix = unpack_prefix(tail[start:start + length].data)
            if prefix is not None and prefix.version <= VERSION:
                self._take(self._end + start, prefix, tail[start:])
        self.damaged += _inner(frames.gaps, len(tail), self._end)
        self._end += frames.gaps[-1][0] if frames.gaps and frames.gaps[-1][1] == len(tail) else len(tail)
        self.release()
        return True

    def release(self) -> None:
        """Let go of the pages that were read; they are read again from the file when they are asked for."""
        if self._data is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._data.madvise(mmap.MADV_DONTNEED)

    def _take(self, start: int, prefix: Prefix, record: np.ndarray) -> None:
        description = record[prefix.description].tobytes()
        if prefix.kind == SAMPLE:
            stretches = self._layouts.setdefault((description, prefix.begin), [])
            if not stretches or not stretches[-1].takes(start):
                stretches.append(Stretch(start))
            stretches[-1].add(start, prefix.step)
        elif prefix.kind == HEADER:
            self.headers.append((prefix.wall, description.decode("utf-8", "replace")))
        elif prefix.kind == SESSION:
            self.restart = json.loads(description)["resume_step"]

    def pieces(self) -> dict[str, list[Piece]]:
        """Every array's stretches, each a view of the file."""
        out: dict[str, list[Piece]] = {}
        for (description, begin), stretches in self._layouts.items():
            for entry in entries(description):
                out.setdefault(entry.name, []).extend(self._view(entry, begin, stretch) for stretch in stretches)
        return out

    def _view(self, entry: Entry, begin: int, stretch: Stretch) -> Piece:
        inner = [4 * int(np.prod(entry.shape[i + 1:])) for i in range(len(entry.shape))]
        shape, at = (len(stretch.steps), *entry.shape), stretch.first + begin + 4 * entry.first
        values = np.ndarray(shape, "<f4", self._data, at, (stretch.stride or 4 * entry.size, *inner))
        return Piece(np.array(stretch.steps, dtype=np.int64), values, entry.axes)


class EventFollower:
    """An event file; what was derived for TensorBoard alone is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = self._end = 0
        self.damaged: list[tuple[int, int]] = []
        self.files: list[EventFile] = []

    def grow(self) -> bool:
        """Read what was appended; whether that was anything."""
        size = self.path.stat().st_size
        if size == self.size:
            return False
        self.size = size
        found = read_events(self.path) if not self._end else self._tail()
        length = size - self._end
        self.damaged += _inner(found.gaps, length, self._end)
        self._end += found.gaps[-1][0] if found.gaps and found.gaps[-1][1] >= length else length
        found.scalars = {tag: points for tag, points in found.scalars.items() if tag.kind != DASHBOARD}
        found.others = [other for other in found.others if other.kind != DASHBOARD]
        self.files.append(found)
        if len(self.files) > PIECES:
            self.files = [_joined(self.files)]
        return True

    def _tail(self) -> EventFile:
        """What was appended, through a file of its own, for the reader takes files."""
        with tempfile.NamedTemporaryFile(prefix="stabilitylens-") as part:
            with self.path.open("rb") as file:
                file.seek(self._end)
                part.write(file.read(self.size - self._end))
            part.flush()
            return read_events(Path(part.name))


def _inner(gaps: tuple[tuple[int, int], ...], length: int, offset: int) -> list[tuple[int, int]]:
    """Damaged bytes of a file; what is skipped at its end may still be being written."""
    return [(offset + start, offset + stop) for start, stop in gaps if stop < length]


def _joined(files: list[EventFile]) -> EventFile:
    parts: dict[Tag, list[Points]] = {}
    for file in files:
        for tag, points in file.scalars.items():
            parts.setdefault(tag, []).append(points)
    scalars = {
        tag: Points(*(np.concatenate([getattr(p, name) for p in some]) for name in ("steps", "walls", "values")))
        for tag, some in parts.items()
    }
    return EventFile(scalars, [other for file in files for other in file.others])
