"""Finds the undamaged records of a file, and goes on after damage at the next one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from google_crc32c import value as crc32c
from jaxtyping import Bool, Int, UInt8, UInt32

from stabilitylens.tfrecord import AFTER, BEFORE, mask

Bytes = UInt8[np.ndarray, " byte"]
#: records that are checked at once; bytes that are searched at once for the next record
_RECORDS, _BYTES = 16384, 1 << 18
#: bytes of a record below which many are copied before they are checked
_SMALL = 4096
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Frames:
    """Where a file's undamaged records hold their data, and the ranges of bytes that were skipped."""

    starts: Int[np.ndarray, " record"]
    lengths: Int[np.ndarray, " record"]
    gaps: tuple[tuple[int, int], ...]


def _table() -> UInt32[np.ndarray, " 256"]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_TABLE = _table()


def rows(data: Bytes, starts: Int[np.ndarray, " record"], length: int) -> UInt8[np.ndarray, "record column"]:
    """The bytes of records of one length, one record a row."""
    if not len(starts):
        return np.zeros((0, length), dtype=np.uint8)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(data, length)[starts])


def _checksums(data: Bytes, at: Int[np.ndarray, " record"]) -> UInt32[np.ndarray, " record"]:
    """The four bytes at each offset as a number."""
    return rows(data, at, 4).view("<u4")[:, 0]


def _walk(data: Bytes, position: int, most: int) -> tuple[list[int], list[int]]:
    """Follow the lengths from a position, trusting them: offsets of records and their lengths."""
    starts: list[int] = []
    lengths: list[int] = []
    view, size, length_at = data.data, len(data) - BEFORE - AFTER, _LENGTH.unpack_from
    while position <= size and len(starts) < most:
        length = length_at(view, position)[0]
        if length > size - position:
            break
        starts.append(position)
        lengths.append(length)
        position += BEFORE + length + AFTER
    return starts, lengths


def _heads_good(data: Bytes, starts: np.ndarray, lengths: np.ndarray) -> Bool[np.ndarray, " record"]:
    unique, which = np.unique(lengths, return_inverse=True)
    expected = np.array([mask(crc32c(_LENGTH.pack(int(n)))) for n in unique], dtype=np.uint32)
    return np.asarray(_checksums(data, starts + 8) == expected[which])


def _data_good(data: Bytes, starts: np.ndarray, lengths: np.ndarray) -> Bool[np.ndarray, " record"]:
    if not len(starts):
        return np.zeros(0, dtype=bool)
    begins, ends, first = starts + BEFORE, starts + BEFORE + lengths, int(starts[0])
    small = ends[-1] - first < _SMALL * len(starts)
    # slices of bytes are made three times as fast as slices of an array, but the bytes are a copy
    source = data[first:ends[-1]].tobytes() if small else data[first:ends[-1]]
    spans = zip((begins - first).tolist(), (ends - first).tolist(), strict=True)
    found = np.array([crc32c(source[a:b]) for a, b in spans], dtype=np.uint32)
    return np.asarray(_checksums(data, ends) == _masked(found))


def _masked(crc: UInt32[np.ndarray, " record"]) -> UInt32[np.ndarray, " record"]:
    return np.asarray((crc >> 15 | crc << 17) + np.uint32(0xA282EAD8))


def _plausible(data: Bytes, begin: int, end: int) -> Int[np.ndarray, " offset"]:
    """Offsets whose length is below 2^40 and not part of a stretch of zeros, as a power cut leaves them."""
    byte = [data[begin + k:end + k] for k in range(BEFORE)]
    low = byte[0] | byte[1] | byte[2] | byte[3] | byte[4] | byte[8] | byte[9] | byte[10] | byte[11]
    return np.flatnonzero(((byte[5] | byte[6] | byte[7]) == 0) & (low != 0)) + begin


def _search(data: Bytes, position: int) -> int:
    """Offset of the first record at or after a position whose checksums are both right; the end if none is."""
    last = len(data) - BEFORE - AFTER
    while position <= last:
        window = _plausible(data, position, min(position + _BYTES, last + 1))
        crc = np.full(len(window), 0xFFFFFFFF, dtype=np.uint32)
        for k in range(8):
            crc = _TABLE[(crc ^ data[window + k]) & 0xFF] ^ crc >> 8
        for candidate in window[_masked(~crc) == _checksums(data, window + 8)].tolist():
            length = _LENGTH.unpack_from(data.data, candidate)[0]
            if candidate + length <= last and _data_good(data, np.array([candidate]), np.array([length]))[0]:
                return int(candidate)
        position += _BYTES
    return len(data)


def _runs(data: Bytes) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[int, int] | None]]:
    """Runs of good records, each with the gap that follows it."""
    position, most = 0, _RECORDS
    while position < len(data):
        starts, lengths = (np.array(x, dtype=np.int64) for x in _walk(data, position, most))
        good = _heads_good(data, starts, lengths)
        good[good] = _data_good(data, starts[good], lengths[good])
        count = len(good) if good.all() else int(np.argmin(good))
        starts, lengths = starts[:count], lengths[:count]
        end = int(starts[-1] + lengths[-1]) + BEFORE + AFTER if count else position
        gap = None
        if count < len(good) or (end < len(data) and len(good) < most):
            gap = (end, _search(data, end + 1))
        # after damage few records are trusted at once: what follows the next damage is checked in vain
        most = 64 if gap else min(2 * most, _RECORDS)
        yield starts, lengths, gap
        position = gap[1] if gap else end


def scan(data: Bytes) -> Frames:
    """All records of a file whose checksums are right.

    Args:
        data: the file's bytes, e.g. mapped into memory.
    """
    runs = list(_runs(data))
    if not runs:
        return Frames(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), ())
    gaps = tuple(gap for _, _, gap in runs if gap and gap[0] < gap[1])
    return Frames(np.concatenate([s for s, _, _ in runs]) + BEFORE, np.concatenate([n for _, n, _ in runs]), gaps)
