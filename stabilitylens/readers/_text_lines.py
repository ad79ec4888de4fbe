"""Makes lines of a log plain: without colours, one frame of a progress bar and one object each, none too long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

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


def prepared(text: str) -> str:
    """Whole lines of a log without colours and with the signs of ASCII; what a terminal erases ends a line."""
    if not text.isascii():
        text = plain_signs(text)
    return _ANSI.sub("", _ERASED.sub("\n", text)) if "\x1b" in text or "\x08" in text or "\x7f" in text else text


def plain(lines: Iterable[str]) -> Iterator[str]:
    """Frames, objects and lines, one by one, in their order."""
    whole = Plain()
    for line in lines:
        for part in prepared(line).split("\n"):
            yield from whole(part)
    yield from whole.end()


@dataclass
class Plain:
    """Takes prepared lines apart into frames and objects, and joins an object that is printed over several lines."""

    open_: list[str] = field(default_factory=list)
    depth: int = 0
    width: int = 0

    def __call__(self, line: str) -> Sequence[str]:
        """The frames, objects and lines that a line ends; the line itself where it is nothing else."""
        if len(line) <= LONGEST and not self.open_ and "%|" not in line and "}" not in line and "{" not in line and line.count("[20") < 2:
            return (line,)
        return [whole for piece in _pieces(line) for whole in self._joined(piece)]

    def end(self) -> Sequence[str]:
        """What is still open."""
        open_, self.open_ = self.open_, []
        return [" ".join(open_)] if open_ else []

    def _joined(self, line: str) -> Sequence[str]:
        if not self.open_ and not _opens(line):
            return (line,)
        self.depth += line.count("{") - line.count("}")
        self.width += len(line)
        self.open_.append(line.strip())
        if self.depth > 0 and len(self.open_) < TALLEST and self.width <= WIDEST:
            return ()
        self.depth = self.width = 0
        return self.end()


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


def _opens(line: str) -> bool:
    """Whether an object begins in a line and does not end there."""
    return "{" in line and line.count("{") > line.count("}") and (line.lstrip()[0] == "{" or _KEY.search(line) is not None)
