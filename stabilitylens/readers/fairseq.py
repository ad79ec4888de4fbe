"""Reads what fairseq prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stabilitylens.readers._reader import reader
from stabilitylens.readers._rows import Mark
from stabilitylens.readers._text_reader import SIGNED, Rows, read_text, signed
from stabilitylens.run import Run

_SUMMARY = re.compile(r"\| (?:INFO \| )?train \|.*?\| loss (?=\S)|\| epoch \d+ \| loss (?=\S)")
_PREFIXES = ("train_", "valid_")


@reader(name="fairseq", sniff=signed(r"\[train_inner\]\[INFO\]|\| train_inner \||\bfairseq(?:_cli|\.)[\w.]*\]?[ |\[]|\| epoch \d+.*\bnum_updates[= ]"), most=SIGNED)
def read(path: Path) -> list[Run]:
    """fairseq, its plain, ``simple`` and ``json`` log formats.

    The steps are ``num_updates``; ``update`` is a fractional epoch. Numbers may be in quotes. Each epoch ends with a line of
    averages over it, ``| train |``; where lines of single intervals are there too, it is a summary, ``epoch_loss``.
    """
    return read_text(path, "fairseq", _counted, _summary_named)


def _summary_named(text: str) -> str:
    return _SUMMARY.sub(lambda found: found[0][:-5] + "epoch_" + found[0][-5:], text)


def _counted(rows: Rows) -> Rows:
    for row in rows:
        if not isinstance(row, Mark):
            fields: dict[str, Any] = row
            fields.pop("update", None)
            for prefix in _PREFIXES:
                if prefix + "num_updates" in fields:
                    fields.setdefault("num_updates", fields.pop(prefix + "num_updates"))
        yield row
