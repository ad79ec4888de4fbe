"""Reads the main.log of llm.c."""

from __future__ import annotations

import re
from pathlib import Path

from stabilitylens.readers._reader import reader
from stabilitylens.readers._text_reader import SIGNED, read_text, signed
from stabilitylens.run import Run

_TERSE = re.compile(r"^s:(\d+) (?:(?=trl:)|tel:)?", re.MULTILINE)


@reader(name="llmc", sniff=signed(r"^s:\d+ (?:trl|tel|eval):"), most=SIGNED)
def read(path: Path) -> list[Run]:
    """llm.c's ``main.log``: ``s:100 trl:10.95 lr:0.000002 norm:15.24`` for training, ``s:250 tel:6.5`` for validation."""
    return read_text(path, "llmc", edit=_spelled_out)


def _spelled_out(text: str) -> str:
    return _TERSE.sub(lambda found: f"step:{found[1]} " + ("val_loss:" if found[0].endswith("tel:") else ""), text)
