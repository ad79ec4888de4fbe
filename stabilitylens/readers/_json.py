"""Parses JSON that somebody else wrote: whole, or what is whole of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from stabilitylens.errors import BadInput
from stabilitylens.readers._json_large import Records, set_apart
from stabilitylens.readers._numbers import number
from stabilitylens.readers._source import head, is_text

#: what is no long list of numbers is held in memory, at some ten times its size; a smaller document is parsed as a whole
LARGEST, SMALL = 1 << 25, 1 << 22
#: how an object or a list begins, and no date or level in brackets
_OPENS = re.compile(rb'\{\s*["}]|\[\s*[\[{"\]]|\[\s*(?:-?[\d.eE+-]+|NaN|null|-?Infinity)\s*[,\]](?!\s*[A-Za-z])')


def begins_json(path: Path) -> bytes:
    """The head of a file that may be a JSON document, without white space before it; nothing of others."""
    begin = head(path)
    if not is_text(begin):
        return b""
    begin = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
    return begin if _OPENS.match(begin) else b""


def document(path: Path, notes: list[str], key: str = "log_history") -> Any:
    """The document in a file, its long lists of numbers as arrays. Of one that is cut or damaged, the records of its first list that are whole.

    Args:
        path: the file.
        notes: gets a sentence on what was skipped.
        key: of the list of records that is read where the document is large; where it has none, the first is.

    Raises:
        BadInput: it is too large, nested too deeply, or no record of it can be read.
    """
    if path.stat().st_size <= SMALL:
        return _parsed(path, path.read_bytes().replace(b"\0", b"").decode("utf-8-sig", "replace"), notes)
    apart = set_apart(path, LARGEST)
    if apart is not None:
        found = _parsed(path, apart.text, notes)
        return apart.put_back(found) if apart.lists else found
    records = Records.of(path, head(path), key, notes)
    if records is None:
        raise BadInput(f"{path} is a JSON document of more than {LARGEST >> 20} MB that is no list of records or numbers; give the history as JSON lines")
    notes.append("the JSON is large: its first list of records was read, and what stands behind it was not")
    return {key: records}


def _parsed(path: Path, text: str, notes: list[str]) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BadInput(f"{path} is JSON that is nested too deeply to be a log; give the log of a training run") from error
    except ValueError as error:
        try:
            found, end = json.JSONDecoder().raw_decode(text.lstrip())
            notes.append(f"{len(text.lstrip()) - end} characters after the JSON were skipped")
            return found
        except (ValueError, RecursionError):
            found = _salvaged(text)
        if not found:
            raise BadInput(f"{path} is no valid JSON ({_where(error)}) and no record in it is whole; give another copy of it") from error
        notes.append(f"the JSON is damaged ({_where(error)}): the {len(found)} records before the damage were read")
        return found


def _where(error: ValueError) -> str:
    return f"{error.msg} in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "a number has too many digits"


def _salvaged(text: str) -> list[dict[str, Any]]:
    """The objects of the first list of objects that come before the damage."""
    key = text.find('"log_history"')
    at = text.find("[", max(key, 0))
    decoder, found = json.JSONDecoder(), []
    while (begin := text.find("{", at)) >= 0 and not text[at:begin].strip(" \t\r\n,["):
        try:
            record, at = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            break
        found.append(record)
    return found


def numbers(value: Any) -> bool:
    """Whether a list holds numbers, spelled or not, and at least one of them."""
    if isinstance(value, np.ndarray):
        return True
    return isinstance(value, list) and any(_is_number(item) for item in value) and all(item is None or _is_number(item) for item in value)


def _is_number(item: Any) -> bool:
    return isinstance(item, float | int) or (isinstance(item, str) and number(item) is not None)
