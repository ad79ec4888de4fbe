"""Reads JSON lines: one object a line, among other text or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stabilitylens.readers._names import known, loss_rank, step_rank
from stabilitylens.readers._numbers import number
from stabilitylens.readers._reader import reader
from stabilitylens.readers._rows import runs_from_rows
from stabilitylens.readers._source import byte_lines, head, is_text
from stabilitylens.run import Run

#: of the first lines of a file of JSON lines, this share are objects; among other text, a guess. *Heuristic*.
MOSTLY = 0.5


def objects(lines: Iterator[bytes], skipped: list[int]) -> Iterator[dict[str, Any]]:
    """The objects among lines; the number of lines that begin like one and are none is added to ``skipped``."""
    for line in lines:
        line = line.strip()
        if line[:1] != b"{":
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            skipped[0] += 1
            continue
        if isinstance(found, dict):
            yield found


def _has_loss(row: dict[str, Any]) -> bool:
    """Whether a lone row has a loss with a number; a configuration may name its loss."""
    return any(loss_rank(key) and (not isinstance(value, str) or number(value) is not None) for key, value in row.items())


def sniff(path: Path) -> float:
    """Sure where most lines are objects; a guess where some are that hold a loss."""
    begin = head(path).replace(b"\0", b"")
    if not is_text(begin) or b"{" not in begin:
        return 0.0
    lines = [line for line in begin.splitlines() if line.strip()]
    found = list(objects(iter(lines), [0]))
    if not found or (len(found) == 1 and not _has_loss(found[0])):
        return 0.0
    speaks = any(loss_rank(key) or step_rank(key) is not None or known(key) for row in found[:200] for key in row)
    if len(found) >= MOSTLY * len(lines):
        return 0.7 if speaks else 0.5
    losses = sum(any(loss_rank(key) for key in row) for row in found)
    return 0.45 if losses >= 3 else 0.0


@reader(name="json_lines", sniff=sniff, most=0.7)
def read(path: Path) -> list[Run]:
    """JSON lines: one object a line, as ``trainer_log.jsonl``, W&B history rows and many loops of one's own write it.

    Rows may have different fields (training, evaluation, configuration), nested objects, numbers in quotes, bare ``NaN``
    and ``Infinity``. Lines of other text between them are passed over; a line that begins like an object and cannot be
    read is skipped, and ``run.notes`` says how many were.
    """
    skipped, notes = [0], []

    def rows() -> Iterator[dict[str, Any]]:
        yield from objects(byte_lines(path), skipped)
        if skipped[0]:
            notes.append(f"{skipped[0]} lines that begin like a JSON object could not be read and were skipped")

    return runs_from_rows(path, "json_lines", rows(), notes)
