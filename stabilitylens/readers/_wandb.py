"""Reads the records of a ``.wandb`` file: LevelDB's log format around W&B's protocol buffers.

The framing is leveldb/doc/log_format.md with zlib's CRC-32 and a header of seven bytes; the messages are those of
wandb_internal.proto, of which only the history and what says where it goes on is read.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stabilitylens.readers._wire import Unlike, fields

MAGIC = b":W&B\xe1\xbe"
_BLOCK, _HEADER = 1 << 15, struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: fields of a record, of its history, and of an item of that
_HISTORY, _ITEM, _STEP, _KEY, _NESTED, _VALUE = 2, 1, 2, 1, 2, 16


def histories(path: Path, skipped: list[int]) -> Iterator[dict[str, Any]]:
    """The rows of the history; the number of damaged blocks and records is added to ``skipped``."""
    for record in _records(path, skipped):
        try:
            for number, _, begin, end in fields(record, 0, len(record)):
                if number == _HISTORY:
                    yield _row(record, begin, end)
        except (Unlike, ValueError, RecursionError):
            skipped[0] += 1


def _row(data: bytes, begin: int, end: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for number, _, b, e in fields(data, begin, end):
        if number == _ITEM:
            key, value = _item(data, b, e)
            row[key] = value
    return row


def _item(data: bytes, begin: int, end: int) -> tuple[str, Any]:
    names, value = [], None
    for number, _, b, e in fields(data, begin, end):
        if number in (_KEY, _NESTED) and e > b:
            names.append(data[b:e].decode("utf-8", "replace"))
        elif number == _VALUE:
            value = json.loads(data[b:e])
    return "/".join(names), value


def _records(path: Path, skipped: list[int]) -> Iterator[bytes]:
    """Whole records, put together from their parts; after damage the next block is tried."""
    parts: list[bytes] = []
    with path.open("rb") as file:
        first = True
        while block := file.read(_BLOCK):
            for kind, data in _parts(block, 7 if first else 0, skipped):
                if kind in (_FULL, _FIRST):
                    parts = []
                parts.append(data)
                if kind in (_FULL, _LAST):
                    yield b"".join(parts)
                    parts = []
            first = False


def _parts(block: bytes, at: int, skipped: list[int]) -> Iterator[tuple[int, bytes]]:
    while at + _HEADER.size <= len(block):
        checksum, length, kind = _HEADER.unpack_from(block, at)
        data = block[at + _HEADER.size:at + _HEADER.size + length]
        if kind == 0 and length == 0:
            return
        if len(data) < length or zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
            skipped[0] += 1
            return
        yield kind, data
        at += _HEADER.size + length
