"""Large JSON in little memory: long lists of numbers become arrays without passing through Python, long lists of records a stream."""

from __future__ import annotations

import codecs
import json
import mmap
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from stabilitylens.readers._large import empty, let_go

#: a list of numbers with at least so many characters is set aside; so many bytes of it are read at once
LONG, AT_ONCE = 1 << 16, 1 << 20
#: characters of a stream that are decoded at once; a record that is longer than so many is none
WINDOW, LARGEST_RECORD = 1 << 22, 1 << 25
#: nesting beyond this is not looked through for what was set aside
DEEP = 16
_NUMBERS = re.compile(rb"\[[-+\d.eE,\sNaInfity]{%d,}\]" % LONG)
_RECORDS = re.compile(r"\[\s*(?=\{)")
BROKEN = "the JSON is cut or damaged: the records before the damage were read"
_MARK = "\0set aside {}"


@dataclass
class Apart:
    """A document without its long lists of numbers, and these."""

    text: str
    lists: list[Float[np.ndarray, " number"]]

    def put_back(self, found: Any, deep: int = DEEP) -> Any:
        """What was parsed, with the lists where they were."""
        if isinstance(found, str) and found.startswith("\0set aside "):
            return self.lists[int(found.rpartition(" ")[2])]
        if deep and isinstance(found, dict):
            return {key: self.put_back(value, deep - 1) for key, value in found.items()}
        return [self.put_back(value, deep - 1) for value in found] if deep and isinstance(found, list) else found


def set_apart(path: Path, most: int) -> Apart | None:
    """A document with its long lists of numbers set aside; None where more than so many bytes would be left."""
    left, lists, end = list[bytes](), list[Float[np.ndarray, " number"]](), 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        whole = np.frombuffer(data, np.uint8)
        for found in _NUMBERS.finditer(data):
            begin, stop = found.span()
            del found  # it holds on to the map
            numbers = _floats(data, begin + 1, stop - 1)
            let_go(whole[end:stop])
            if numbers is None:
                continue
            left += [data[end:begin], json.dumps(_MARK.format(len(lists))).encode()]
            lists.append(numbers)
            end = stop
            if sum(map(len, left)) > most:
                break
        rest = len(data) - end
        fits = sum(map(len, left)) + rest <= most
        left += [data[end:]] if fits else []
        del whole
    text = b"".join(left)
    return Apart((text.replace(b"\0", b"") if b"\0" in text else text).decode("utf-8-sig", "replace"), lists) if fits else None


def _floats(data: mmap.mmap, begin: int, end: int) -> Float[np.ndarray, " number"] | None:
    """The numbers between two places, separated by commas; None where anything else stands there, as a null."""
    places = list(_cuts(data, begin, end))
    out = empty(sum(data[a:b].count(b",") + 1 for a, b in places), np.float64)
    at = 0
    for a, b in places:
        try:
            some = array("d", json.loads(b"[" + data[a:b] + b"]"))
        except (ValueError, TypeError, OverflowError):
            return None
        if at + len(some) > len(out):
            return None
        out[at:at + len(some)] = some
        let_go(out[at:at + len(some)])
        at += len(some)
    return out


def _cuts(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, int]]:
    while begin < end:
        cut = end if end - begin <= AT_ONCE else data.find(b",", begin + AT_ONCE, end)
        cut = end if cut < 0 else cut
        yield begin, cut
        begin = cut + 1


class Records:
    """The first list of records in a document, or the one of a key, decoded one by one each time that it is gone through.

    Args:
        path: the document.
        begin: the place of the first record.
        notes: gets a sentence where the list breaks off, once.
    """

    def __init__(self, path: Path, begin: int, notes: list[str]) -> None:
        self.path, self.begin, self.notes = path, begin, notes

    @classmethod
    def of(cls, path: Path, head: bytes, key: str, notes: list[str]) -> Records | None:
        """Those that begin in the head of a document; None where none do."""
        text = head.decode("utf-8", "replace")
        found = _RECORDS.search(text, max(text.find(json.dumps(key)), 0))
        return None if found is None else cls(path, found.end(), notes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        decode = json.JSONDecoder().raw_decode
        with self.path.open("rb") as file:
            stream = codecs.getincrementaldecoder("utf-8-sig")("replace")
            text, at = stream.decode(file.read(WINDOW)), self.begin
            while True:
                try:
                    at = _next(text, at)
                    if text[at] == "]":
                        return
                    record, at = decode(text, at)
                except (ValueError, RecursionError, IndexError):
                    text, at = text[at:], 0
                    chunk = file.read(WINDOW) if len(text) < LARGEST_RECORD else b""
                    if not chunk:
                        self.notes += [] if BROKEN in self.notes else [BROKEN]
                        return
                    text += stream.decode(chunk)
                    continue
                if isinstance(record, dict):
                    yield record


def _next(text: str, at: int) -> int:
    """The place of the next record, or of the end of the list.

    Raises:
        IndexError: the text ends before it.
    """
    while text[at] in ", \t\r\n":
        at += 1
    return at
