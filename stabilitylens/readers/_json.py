"""Parses JSON that somebody else wrote: whole, or what is whole of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stabilitylens.errors import BadInput
from stabilitylens.readers._numbers import number
from stabilitylens.readers._source import head, is_text

#: documents are held in memory as a whole, at some ten times their size
LARGEST = 1 << 28
#: how an object or a list begins, and no date or level in brackets
_OPENS = re.compile(rb'\{\s*["}]|\[\s*[\[{"\]]|\[\s*(?:-?[\d.eE+-]+|NaN|null|-?Infinity)\s*[,\]](?!\s*[A-Za-z])')


def begins_json(path: Path) -> bytes:
    """The head of a file that may be a JSON document, without white space before it; nothing of others."""
    begin = head(path)
    if not is_text(begin):
        return b""
    begin = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
    return begin if _OPENS.match(begin) else b""


def document(path: Path, notes: list[str]) -> Any:
    """The document in a file. Of one that is cut or damaged, the records of its first list that are whole.

    Raises:
        BadInput: it is too large, nested too deeply, or no record of it can be read.
    """
    if path.stat().st_size > LARGEST:
        raise BadInput(f"{path} is a JSON document of more than {LARGEST >> 20} MB; give the history as JSON lines")
    text = path.read_bytes().replace(b"\0", b"").decode("utf-8-sig", "replace")
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
    return isinstance(value, list) and any(_is_number(item) for item in value) and all(item is None or _is_number(item) for item in value)


def _is_number(item: Any) -> bool:
    return isinstance(item, float | int) or (isinstance(item, str) and number(item) is not None)
