"""Makes lines of a log plain: without colours, one frame of a progress bar and one object each, none too long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from stabilitylens.readers._words import plain_signs

#: characters of a line that are looked at; lines and characters that an object may stretch over
LONGEST, TALLEST, WIDEST = 16_384, 400, 65_536
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_ERASED = re.compile(r"[\x08\x7f]+|\x1b\[\d*[AGK]")
#: before a frame that follows another on its line, between a bar and what follows it, between two objects
_FRAME = re.compile(
    r"(?<=[\]}\s,])(?=[A-Z][\w ]{0,30}:\s{1,4}\d{1,3}%\|)|(?<=[\]}])(?=\s{1,400}\d{1,3}%\|)"
    r"|(?<=it/s\])(?=\s{0,400}[^\s\d]|\d{4}-)|(?<=s/it\])(?=\s{0,400}[^\s\d]|\d{4}-)|(?<=it/s)(?=\{)|(?<=s/it)(?=\{)|(?<=\})(?=\s{0,400}\{['\"])"
)
#: before the date that a record begins with, where several stand on one line
_STAMP = re.compile(r"(?<=\s)(?=\[20\d\d[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d)")
_KEY = re.compile(r"\{\s*['\"][^'\"]{1,60}['\"]:[^{}]*$")
_OBJECTS = re.compile(r"\}\s{0,40}\{['\"]")


def plain(lines: Iterable[str]) -> Iterator[str]:
    """Frames, objects and lines, one by one, in their order."""
    yield from _whole_objects(_frames(lines))


def _frames(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if not line.isascii():
            line = plain_signs(line)
        if "\x1b" in line or "\x08" in line:
            for part in _ERASED.split(line):
                yield from _pieces(_ANSI.sub("", part))
        elif len(line) > LONGEST or "%|" in line or "}" in line or line.count("[20") > 1:
            yield from _pieces(line)
        else:
            yield line


def _pieces(line: str) -> Iterator[str]:
    """The frames and objects of a line; of a long line without any, the beginning."""
    if line.count("[20") > 1 and len(line) <= LONGEST:
        yield from filter(None, _STAMP.split(line))
        return
    if not ("%|" in line and ("{" in line or line.count("%|") > 1 or line.rstrip()[-1] not in "])") or _OBJECTS.search(line)):
        yield line[:LONGEST]
        return
    begin = 0
    while begin < len(line):
        end = begin + LONGEST
        if end < len(line):
            end = max(line.rfind("}", begin, end), line.rfind("]", begin, end)) + 1 or end
        yield from filter(None, _FRAME.split(line[begin:end]))
        begin = end


def _whole_objects(lines: Iterable[str]) -> Iterator[str]:
    """Joins an object that is printed over several lines."""
    open_: list[str] = []
    depth = width = 0
    for line in lines:
        if not open_ and not _opens(line):
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


def _opens(line: str) -> bool:
    """Whether an object begins in a line and does not end there."""
    return "{" in line and line.count("{") > line.count("}") and (line.lstrip()[0] == "{" or _KEY.search(line) is not None)
