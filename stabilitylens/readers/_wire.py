"""Which bytes of a serialized TensorBoard event are numbers, so that its like can be read by the thousand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int, UInt8

from stabilitylens.writers._protobuf import MARKER_FIELD, marker

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_DT_FLOAT = 1
Rows = UInt8[np.ndarray, "record byte"]


class Unlike(Exception):
    """The event holds something that is read with TensorBoard's own classes."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint and the offset after it."""
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Unlike
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, begin and end of each field of a message."""
    while at < end:
        key, at = varint(data, at)
        kind, begin = key & 7, at
        if kind == VARINT:
            _, at = varint(data, at)
        elif kind == BYTES:
            length, begin = varint(data, at)
            at = begin + length
        elif kind in (FIXED32, FIXED64):
            at += 4 if kind == FIXED32 else 8
        else:
            raise Unlike
        if at > end:
            raise Unlike
        yield key >> 3, kind, begin, at


@dataclass
class Value:
    """One value of an event: its tag, its metadata's display name, and where its float32 and its tag are."""

    tag: str = ""
    name: str = ""
    at: int = -1
    text: tuple[int, int] = (0, 0)


@dataclass
class Template:
    """Where the numbers of an event are; events of one template differ in them alone.

    Attributes:
        kind: of our events (see :mod:`stabilitylens.writers._protobuf`), 0 for others'.
        wall, step: first byte of the time; begin and end of the step, absent where it is 0.
        keep: per byte, the bits that all events of the template share.
    """

    keep: UInt8[np.ndarray, " byte"]
    wall: int = -1
    step: tuple[int, int] = (0, 0)
    kind: int = 0
    values: list[Value] = field(default_factory=list)

    def frame(self) -> UInt8[np.ndarray, " byte"]:
        """As ``keep``, without the tags: what events have in common whose numbers are in the same places."""
        out = self.keep.copy()
        for value in self.values:
            out[value.text[0]:value.text[1]] = 0
        return out

    def steps(self, rows: Rows) -> Int[np.ndarray, " record"]:
        """The step of each event."""
        begin, end = self.step
        out = np.zeros(len(rows), dtype=np.uint64)
        for i in range(begin, end):
            out |= (rows[:, i].astype(np.uint64) & np.uint64(127)) << np.uint64(7 * (i - begin))
        return out.view(np.int64)

    def walls(self, rows: Rows) -> Float[np.ndarray, " record"]:
        """The time of each event in seconds since 1970."""
        if self.wall < 0:
            return np.full(len(rows), np.nan)
        return np.ascontiguousarray(rows[:, self.wall:self.wall + 8]).view("<f8")[:, 0]

    def numbers(self, rows: Rows, value: Value) -> Float[np.ndarray, " record"]:
        """A value of each event."""
        return np.ascontiguousarray(rows[:, value.at:value.at + 4]).view("<f4")[:, 0].astype(np.float64)


def template(data: bytes) -> Template:
    """The template of a serialized event that holds scalars and nothing else.

    Raises:
        Unlike: it holds something else, or is no event.
    """
    out = Template(np.full(len(data), 255, dtype=np.uint8))
    for number, kind, begin, end in fields(data, 0, len(data)):
        if (number, kind) == (1, FIXED64):
            out.wall = begin
            out.keep[begin:end] = 0
        elif (number, kind) == (2, VARINT):
            out.step = begin, end
            out.keep[begin:end] = 128
        elif (number, kind) == (5, BYTES):
            out.values = [_value(data, b, e) for _, _, b, e in fields(data, begin, end)]
        elif (number, kind) == (MARKER_FIELD, FIXED32) and data[begin:begin + 2] == b"SL":
            out.kind = data[end - 1]
        elif number != 10:
            raise Unlike
    if not out.values:
        raise Unlike
    for value in out.values:
        out.keep[value.at:value.at + 4] = 0
    return out


def _value(data: bytes, begin: int, end: int) -> Value:
    out = Value()
    for number, kind, b, e in fields(data, begin, end):
        if (number, kind) == (1, BYTES):
            out.tag, out.text = data[b:e].decode("utf-8", "replace"), (b, e)
        elif (number, kind) == (2, FIXED32):
            out.at = b
        elif (number, kind) == (8, BYTES):
            out.at = _float_tensor(data, b, e)
        elif (number, kind) == (9, BYTES):
            out.name = next((data[i:j].decode("utf-8", "replace") for n, _, i, j in fields(data, b, e) if n == 2), "")
        elif number != 7:
            raise Unlike
    if out.at < 0:
        raise Unlike
    return out


def _float_tensor(data: bytes, begin: int, end: int) -> int:
    """Where a tensor of one float32 has its value."""
    at, dtype = -1, 0
    for number, _, b, e in fields(data, begin, end):
        if number == 1:
            dtype, _ = varint(data, b)
        elif number in (4, 5) and e - b == 4:
            at = b
        elif not (number == 2 and b == e):
            raise Unlike
    if dtype != _DT_FLOAT:
        raise Unlike
    return at


def marker_kind(data: bytes) -> int:
    """The kind of one of our events by its last field, 0 for others'."""
    mark = marker(0)
    return data[-1] if data[-len(mark):-1] == mark[:-1] else 0
