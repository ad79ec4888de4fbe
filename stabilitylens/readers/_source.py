"""Reads a file's bytes as text, whatever its encoding and line ends; in bounded memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from stabilitylens.readers._progress import progress
from stabilitylens.readers._words import speaks

HEAD = 1 << 18
#: a longer line is cut into lines of this length
LONGEST = 1 << 22
_CHUNK = 1 << 20
#: a stretch of so many NULs is a hole in a file, as a log has that was cut while it was written
NULS = 64
#: text in an unknown encoding has at least this share of ASCII. *Heuristic*.
READABLE = 0.6
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\x08\x0b\x0c\x1b"))
_HIGH = bytes(range(128, 256))
_LEGACY = ("gb18030", "cp1251")
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: "utf-8"}


def head(path: Path) -> bytes:
    """The first 256 KB of a file, UTF-16 as UTF-8, without a byte-order mark; nothing of a folder."""
    if not path.is_file():
        return b""
    stat = path.stat()
    return _head(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _head(path: Path, modified: int, size: int) -> bytes:
    begin = _raw(path)
    encoding = _encoding(begin)
    begin = begin if encoding == "utf-8" else begin.decode(encoding, "replace").encode()
    return begin.removeprefix(codecs.BOM_UTF8)


def _raw(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)


def is_text(begin: bytes) -> bool:
    """Whether bytes are text in UTF-8; a few NULs and stray bytes do not matter."""
    if not begin:
        return False
    begin = begin.replace(b"\0", b"") if b"\0" * NULS in begin else begin
    odd = len(begin) - len(begin.translate(None, _CONTROLS))
    if odd > 0.1 * len(begin) or not begin:
        return False
    text = begin.decode("utf-8", "replace")
    readable = len(begin.translate(None, _HIGH))
    return text.count("\ufffd") <= 0.02 * len(text) + 4 or (odd <= 0.01 * len(begin) and readable >= READABLE * len(begin))


def _encoding(begin: bytes) -> str:
    """By the byte-order mark; of text that is not UTF-8, that in which the words of a log make sense."""
    marked = next((name for mark, name in _MARKS.items() if begin.startswith(mark)), None)
    if marked is not None or begin.isascii() or begin.decode("utf-8", "replace").count("\ufffd") <= 0.001 * len(begin) + 1:
        return marked or "utf-8"
    return next((name for name in _LEGACY if speaks(begin.decode(name, "ignore"))), "utf-8")


def is_plain(path: Path) -> bool:
    """Whether a file's head is UTF-8 without a byte-order mark or NULs."""
    begin = _raw(path)
    return _encoding(begin) == "utf-8" and b"\0" not in begin and not begin.startswith(codecs.BOM_UTF8)


def lines(path: Path, longest: int = LONGEST) -> Iterator[str]:
    """The lines of a text, without their ends.

    Lines end with LF, CR LF or CR alone, as the frames of a progress bar do. NULs and a byte-order mark are left out,
    bytes that are no text become U+FFFD, and a line beyond ``longest`` bytes is cut into several.
    """
    for line in byte_lines(path, longest):
        yield line.decode("utf-8", "replace")


def blocks(path: Path) -> Iterator[str]:
    """A text, a megabyte of whole lines at a time; every line ends with LF. Else as ``lines``."""
    rest = b""
    for chunk in _chunks(path):
        data = rest + chunk if rest else chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        if not end and len(data) > LONGEST:
            end = LONGEST
        rest = data[end:]
        if end:
            yield _ended(data[:end])
    if rest:
        yield _ended(rest)


def _ended(data: bytes) -> str:
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    text = data.decode("utf-8", "replace")
    return text if text.endswith("\n") else text + "\n"


def byte_lines(path: Path, longest: int = LONGEST) -> Iterator[bytes]:
    """As ``lines``, in UTF-8 that is not decoded."""
    rest = b""
    for chunk in _chunks(path):
        data = rest + chunk if rest else chunk
        found = data.splitlines()
        rest = found.pop() if found and data[-1:] not in (b"\n", b"\r") else b""
        yield from found
        while len(rest) > longest:
            yield rest[:longest]
            rest = rest[longest:]
    if rest:
        yield rest


def _chunks(path: Path) -> Iterator[bytes]:
    """A file's bytes as UTF-8 without NULs."""
    encoding = _encoding(_raw(path))
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding != "utf-8" else None
    with path.open("rb") as file, progress(path) as advance:
        first = True
        while chunk := file.read(_CHUNK):
            advance(len(chunk))
            if decoder is not None:
                chunk = decoder.decode(chunk).encode()
            if first:
                chunk, first = chunk.removeprefix(codecs.BOM_UTF8), False
            yield chunk.replace(b"\0", b"") if b"\0" in chunk else chunk
