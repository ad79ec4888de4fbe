"""Reads an array file: arrays by name, mapped into memory where the records have one layout."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.arrayrecord import HEADER, MAGIC, SAMPLE, SESSION, VERSION, Entry, Prefix, entries, unpack_prefix
from stabilitylens.readers._events import mapped
from stabilitylens.readers._framing import Bytes, scan
from stabilitylens.writers._session import ARRAYS, session_of


@dataclass(frozen=True)
class Block:
    """An array over the samples of one layout.

    Attributes:
        order: number of each record in the file.
        values: float32, a view of the file where its records are evenly spaced.
    """

    axes: tuple[str, ...]
    order: Int[np.ndarray, " sample"]
    steps: Int[np.ndarray, " sample"]
    values: Float[np.ndarray, "sample *axes"]


@dataclass
class ArrayFile:
    """What an array file holds.

    Attributes:
        headers: time and JSON of each header.
        restart: the step at which the session says that it begins, superseding what came before.
        gaps: ranges of bytes that are damaged.
        records: number of undamaged records; unread: how many of them are of a newer version or no array records.
    """

    blocks: dict[str, list[Block]] = field(default_factory=dict)
    headers: list[tuple[float, str]] = field(default_factory=list)
    restart: int | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    records: int = 0
    unread: int = 0


def is_arrays(path: Path) -> bool:
    """Whether a file holds array records, by its name where it is one of ours, else by its first bytes."""
    if session_of(path.name) is not None:
        return ARRAYS.fullmatch(path.name) is not None
    with path.open("rb") as file:
        return MAGIC in file.read(4096)


def read_arrays(path: Path) -> ArrayFile:
    """Read an array file: each record's checksum is verified once, here.

    Raises:
        OSError: it cannot be read.
    """
    data = mapped(path)
    frames = scan(data)
    out = ArrayFile(gaps=frames.gaps, records=len(frames.starts))
    layouts: dict[tuple[bytes, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for number, (start, length) in enumerate(zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True)):
        prefix = unpack_prefix(data[start:start + length].data)
        if prefix is None or prefix.version > VERSION or prefix.kind not in (SAMPLE, HEADER, SESSION):
            out.unread += 1
            continue
        description = data[start + prefix.description.start:start + prefix.description.stop].tobytes()
        if prefix.kind == SAMPLE:
            layouts[description, prefix.begin, length].append((number, start, prefix.step))
        else:
            _note(out, prefix, description)
    blocks: dict[str, list[Block]] = defaultdict(list)
    for (description, begin, _), records in layouts.items():
        for entry in entries(description):
            blocks[entry.name].append(_block(data, entry, begin, records))
    out.blocks = dict(blocks)
    return out


def _note(out: ArrayFile, prefix: Prefix, description: bytes) -> None:
    if prefix.kind == HEADER:
        out.headers.append((prefix.wall, description.decode()))
    else:
        out.restart = json.loads(description)["resume_step"]


def _block(data: Bytes, entry: Entry, begin: int, records: list[tuple[int, int, int]]) -> Block:
    order, starts, steps = np.array(records, dtype=np.int64).T
    at = starts + begin + 4 * entry.first
    strides = np.unique(np.diff(starts))
    if len(strides) <= 1 and int(at[0]) % 4 == 0:
        stride = int(strides[0]) if len(strides) else 4 * entry.size
        flat = np.ndarray((len(at), entry.size), "<f4", data, int(at[0]), (stride, 4))
    else:
        flat = _gathered(data, at, entry.size)
    return Block(entry.axes, order, steps, flat.reshape(len(at), *entry.shape))


def _gathered(data: Bytes, at: Int[np.ndarray, " sample"], size: int) -> Float[np.ndarray, "sample element"]:
    out = np.empty((len(at), size), dtype="<f4")
    for row, start in zip(out, at.tolist(), strict=True):
        row[:] = np.frombuffer(data, "<f4", size, start)
    return out
