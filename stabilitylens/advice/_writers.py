"""The forms that advice and proposals are written in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TextIO

from stabilitylens.advice._document import Advisory
from stabilitylens.advice._page import write_page
from stabilitylens.advice._text import write_text
from stabilitylens.reports.json import SCHEMA, plain


def write_json(document: Advisory, stream: TextIO) -> None:
    """Indented, keys in the order of the contract, with a final newline."""
    json.dump(plain({"schema": SCHEMA} | document.to_dict()), stream, indent=2, allow_nan=False)
    stream.write("\n")


WRITERS: dict[str, Callable[[Advisory, TextIO], None]] = {"text": write_text, "json": write_json, "html": write_page}
