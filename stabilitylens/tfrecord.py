"""The framing of both files of a recording: length, its checksum, data, its checksum, as TFRecord has it.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details (masked CRC-32C).
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c

#: length and its checksum before the data, the data's checksum after it
BEFORE, AFTER = 12, 4
_HEAD = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


def mask(crc: int) -> int:
    """Rotate and shift a checksum, so that data which holds checksums is itself safely checksummed."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Masked CRC-32C of some bytes."""
    return mask(crc32c(data))


def frame(data: bytes) -> bytes:
    """A record that holds these bytes."""
    length = len(data)
    head = _HEAD.pack(length, masked_crc(_LENGTH.pack(length)))
    return head + data + _CHECKSUM.pack(masked_crc(data))
