"""One record of an array file: everything that is needed to read it, then float32 data.

In the framing of :mod:`stabilitylens.tfrecord`, little-endian:

=======  ==================================================================
byte     holds
=======  ==================================================================
0        ``SLAR``, version (1), kind (1 sample, 2 header, 3 session), 2 unused
8        step, int64
16       wall time, float64, seconds since 1970
24       length of the description, uint32
28       where the data begins, uint32, from byte 0
32       the description, JSON in UTF-8
=======  ==================================================================

A sample's description is ``{"arrays": [[name, axes, shape, first element], …]}``; a header's is the
header; a session's is ``{"resume_step": null | step, "first_step": of the run}``. Every record is a multiple of 64 bytes with
its framing, and data begin at a multiple of 64 in an undamaged file, so that records of one layout
can be mapped into memory with a constant stride.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from stabilitylens.tfrecord import AFTER, BEFORE

MAGIC, VERSION = b"SLAR", 1
SAMPLE, HEADER, SESSION = 1, 2, 3
ALIGN = 64
PREFIX = struct.Struct("<4sBBHqdII")


@dataclass(frozen=True)
class Entry:
    """An array of a record: its name, axes, shape, and its first element in the data."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    first: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def _padded(length: int, before: int = 0) -> int:
    return -(-(length + before) // ALIGN) * ALIGN - before


def pack(kind: int, step: int, wall: float, description: bytes, data: bytes = b"") -> bytes:
    """The bytes of a record, padded with zeros to its aligned length."""
    begin = _padded(PREFIX.size + len(description), BEFORE)
    head = PREFIX.pack(MAGIC, VERSION, kind, 0, step, wall, len(description), begin) + description
    return (head.ljust(begin, b"\0") + data).ljust(_padded(begin + len(data), BEFORE + AFTER), b"\0")


class Layout:
    """Packs samples that hold the same arrays: the description is made once.

    Args:
        arrays: name, axes and shape of each.
    """

    def __init__(self, arrays: list[tuple[str, tuple[str, ...], tuple[int, ...]]]) -> None:
        self.entries: list[Entry] = []
        size = 0
        for name, axes, shape in arrays:
            self.entries.append(Entry(name, axes, shape, size))
            size += self.entries[-1].size
        rows = [[e.name, e.axes, e.shape, e.first] for e in self.entries]
        description = json.dumps({"arrays": rows}, separators=(",", ":")).encode()
        self._buffer = bytearray(pack(SAMPLE, 0, 0.0, description, bytes(4 * size)))
        begin = PREFIX.unpack_from(self._buffer)[-1]
        self._data = np.frombuffer(self._buffer, "<f4", size, begin)

    def pack(self, step: int, wall: float, arrays: list[np.ndarray]) -> bytes:
        """A sample; values beyond float32 become infinite."""
        struct.pack_into("<qd", self._buffer, 8, step, wall)
        with np.errstate(over="ignore"):
            for entry, array in zip(self.entries, arrays, strict=True):
                self._data[entry.first:entry.first + entry.size] = array.ravel()
        return bytes(self._buffer)


@dataclass(frozen=True)
class Prefix:
    """The fixed part of a record."""

    version: int
    kind: int
    step: int
    wall: float
    description: slice
    begin: int


def unpack_prefix(record: bytes | memoryview) -> Prefix | None:
    """The fixed part, or None where these bytes are no array record."""
    if len(record) < PREFIX.size:
        return None
    magic, version, kind, _, step, wall, length, begin = PREFIX.unpack_from(record)
    if magic != MAGIC or begin > len(record) or PREFIX.size + length > begin:
        return None
    return Prefix(version, kind, step, wall, slice(PREFIX.size, PREFIX.size + length), begin)


def read_description(record: bytes) -> bytes:
    """The description of a record that may be cut off after it, empty where these bytes are no array record."""
    prefix = unpack_prefix(record)
    return record[prefix.description] if prefix else b""


def entries(description: bytes) -> list[Entry]:
    """The arrays that a sample's description lists."""
    rows: list[list[Any]] = json.loads(description)["arrays"]
    return [Entry(name, tuple(axes), tuple(shape), first) for name, axes, shape, first in rows]
