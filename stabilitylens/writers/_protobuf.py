"""TensorBoard events, encoded by hand where it must be fast and with TensorBoard's own classes elsewhere.

Each of our events ends in a field that TensorBoard does not know and skips: number 2047, fixed32,
``S``, ``L``, version, kind. It makes every record say by itself whose it is and what it is for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

#: kinds of event: a step's scalars, what only TensorBoard needs, something that happened, the header
STEP, DASHBOARD, EVENT, HEADER = 1, 2, 3, 4
MARKER_FIELD = 2047


def varint(number: int) -> bytes:
    """Base-128 encoding of an int64."""
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def marker(kind: int) -> bytes:
    """The field that marks an event as ours."""
    return varint(MARKER_FIELD << 3 | 5) + b"SL" + bytes((1, kind))


def utf8(text: str) -> str:
    """The text with what UTF-8 cannot hold (lone surrogates) replaced."""
    return text.encode("utf-8", "replace").decode()


def metadata(display_name: str = "", description: str = "", plugin: str = "") -> bytes:
    """A serialized SummaryMetadata, empty where there is nothing to say."""
    message = summary_pb2.SummaryMetadata(display_name=utf8(display_name), summary_description=utf8(description))
    if plugin:
        message.plugin_data.plugin_name = plugin
    encoded: bytes = message.SerializeToString()
    return encoded


class ScalarEvent:
    """Encodes events that hold the same tags: all bytes but the numbers are made once.

    Args:
        kind: whose the event is.
        tags: of the values, in order.
        metadatas: of each value, serialized; ``b""`` for none.
    """

    def __init__(self, kind: int, tags: Sequence[str], metadatas: Sequence[bytes]) -> None:
        pieces, size = [b""], 0
        for tag, meta in zip(tags, metadatas, strict=True):
            before = _message(1, tag.encode()) + b"\x15"
            after = _message(9, meta) if meta else b""
            length = len(before) + 4 + len(after)
            begin = b"\x0a" + varint(length)
            pieces[-1] += begin + before
            pieces.append(after)
            size += len(begin) + length
        pieces[0] = b"\x2a" + varint(size) + pieces[0]
        pieces[-1] += marker(kind)
        self._struct = struct.Struct("<" + "f".join(f"{len(piece)}s" for piece in pieces))
        self._arguments: list[bytes | float] = [b""] * (2 * len(pieces) - 1)
        self._arguments[::2] = pieces

    def encode(self, step: int, wall: float, values: Sequence[float]) -> bytes:
        """The serialized event; values beyond float32 become infinite."""
        self._arguments[1::2] = values
        try:
            body = self._struct.pack(*self._arguments)
        except OverflowError:
            with np.errstate(over="ignore"):
                self._arguments[1::2] = np.asarray(values, np.float32).tolist()
            body = self._struct.pack(*self._arguments)
        return b"\x09" + struct.pack("<d", wall) + b"\x10" + varint(int(step)) + body


def string_tensor(data: bytes) -> tensor_pb2.TensorProto:
    """A scalar tensor that holds one string."""
    return tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[data])


def scalar_value(tag: str, value: float) -> summary_pb2.Summary.Value:
    """A value of TensorBoard's scalar dashboard."""
    return summary_pb2.Summary.Value(tag=tag, simple_value=value)


def text_value(tag: str, text: str, display_name: str = "") -> summary_pb2.Summary.Value:
    """A value of TensorBoard's text dashboard."""
    message = summary_pb2.SummaryMetadata.FromString(metadata(display_name, plugin="text"))
    return summary_pb2.Summary.Value(tag=tag, tensor=string_tensor(text.encode("utf-8", "replace")), metadata=message)


def event(kind: int, step: int, wall: float, values: Sequence[summary_pb2.Summary.Value]) -> bytes:
    """A serialized event of any values."""
    message = event_pb2.Event(wall_time=wall, step=step, summary=summary_pb2.Summary(value=values))
    encoded: bytes = message.SerializeToString()
    return encoded + marker(kind)


def opening(wall: float, resume_step: int | None) -> list[bytes]:
    """The events that a file begins with; with a step, TensorBoard drops what earlier files have from there on."""
    version = event_pb2.Event(wall_time=wall, file_version="brain.Event:2")
    version.source_metadata.writer = "stabilitylens"
    events = [version]
    if resume_step is not None:
        log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        events.append(event_pb2.Event(wall_time=wall, step=resume_step, session_log=log))
    return [e.SerializeToString() + marker(HEADER) for e in events]
