"""Reads lines of a step, a name and a value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from stabilitylens.readers._names import EVALUATION, TRAINING, loss_rank, normal
from stabilitylens.readers._reader import reader
from stabilitylens.readers._rows import runs_from_rows
from stabilitylens.readers._source import head, is_text, lines
from stabilitylens.run import Run

_VALUE = r"(?P<value>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf))"
_LINE = re.compile(rf"\s*(?:(?P<step>\d+)[\s,;|]+(?P<name>[^\W\d][\w./-]*)|(?P<name2>[^\W\d][\w./-]*)[\s,;|]+(?P<step2>\d+))[\s,;|]+{_VALUE}\s*", re.I)
#: lines of the head that are looked at, the share of them that has to be such lines, and how many at least. *Heuristic*.
LOOKED_AT, MOSTLY, FEW = 200, 0.8, 5


def sniff(path: Path) -> float:
    """Sure where nearly all lines are a step, a name and a value, and a name is a loss's or that of a part of a run."""
    begin = head(path)
    if not is_text(begin):
        return 0.0
    some = [line for line in begin.decode("utf-8", "replace").splitlines()[:LOOKED_AT] if line.strip()]
    found = [match for line in some if (match := _LINE.fullmatch(line)) is not None]
    if len(found) < max(FEW, MOSTLY * len(some)):
        return 0.0
    return 0.6 if any(loss_rank(_field(match)) for match in found) else 0.0


@reader(name="step_name_value", sniff=sniff, most=0.6)
def read(path: Path) -> list[Run]:
    """Lines of a step, a name and a value: ``250 train 3.21``, ``250 val 3.30``, ``250 hella 0.25``; also ``train 250 3.21``.

    So writes build-nanogpt its ``log.txt``. Blanks, tabs, commas, semicolons or bars stand between. A value that is called
    as a part of a run, as ``train`` and ``val``, is the loss of that part. Other lines are skipped, and ``run.notes`` says
    how many were.
    """
    notes: list[str] = []
    return runs_from_rows(path, "step_name_value", _rows(path, notes), notes)


def _rows(path: Path, notes: list[str]) -> Iterator[dict[str, str]]:
    skipped, row = 0, dict[str, str]()
    for line in lines(path):
        match = _LINE.fullmatch(line)
        if match is None:
            skipped += bool(line.strip())
            continue
        step, name = match["step"] or match["step2"], _field(match)
        if row.get("step") != step or name in row:
            yield from [row] if row else ()
            row = {"step": step}
        row[name] = match["value"]
    yield from [row] if row else ()
    if skipped:
        notes.append(f"{skipped} lines are no step, name and value and were skipped")


def _field(match: re.Match[str]) -> str:
    name = match["name"] or match["name2"]
    return f"{name} loss" if normal(name) in EVALUATION | TRAINING else name
