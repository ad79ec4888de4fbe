"""Makes lines of a log plain: without colours, one frame of a progress bar and one object each, none too long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: characters of a line that are looked at; lines and characters that an object may stretch over
LONGEST, TALLEST, WIDEST = 16_384, 400, 65_536
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_ERASED = re.compile(r"[\x08\x7f]+|\x1b\[\d*[AGK]")
#: before a frame that follows another on its line, and between a bar or an object and an object
_FRAME = re.compile(
    r"(?<=[\]}\s,])(?=[A-Z][\w ]{0,30}:\s+\d{1,3}%\|)|(?<=[\]}])\s*(?=\s\d{1,3}%\|)|(?<=it/s\])\s*(?=\{)|(?<=s/it\])\s*(?=\{)|(?<=\})\s*(?=\{['\"])"
)
_SEVERAL = re.compile(r"%\|.*%\||%\|.*\{|\}\s*\{['\"]|\}.*%\|")


def plain(lines: Iterable[str]) -> Iterator[str]:
    """Frames, objects and lines, one by one, in their order."""
    yield from _whole_objects(_frames(lines))


def _frames(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        for piece in _pieces(line):
            if len(piece) > LONGEST:
                piece = piece[:LONGEST]
            yield piece


def _pieces(line: str) -> list[str]:
    if "\x1b" in line or "\x08" in line:
        return [piece for part in _ERASED.split(line) for piece in _objects(_ANSI.sub("", part))]
    return _objects(line)


def _objects(line: str) -> list[str]:
    if ("%|" in line or "}" in line) and _SEVERAL.search(line):
        return [piece for piece in _FRAME.split(line) if piece]
    return [line]


def _whole_objects(lines: Iterable[str]) -> Iterator[str]:
    """Joins an object that is printed over several lines."""
    open_: list[str] = []
    depth = width = 0
    for line in lines:
        if not open_ and not (line[:1] == "{" or line.lstrip()[:1] == "{"):
            yield line
            continue
        depth += line.count("{") - line.count("}")
        width += len(line)
        open_.append(line.strip())
        if depth <= 0 or len(open_) >= TALLEST or width > WIDEST:
            yield " ".join(open_)
            open_, depth, width = [], 0, 0
    if open_:
        yield " ".join(open_)
