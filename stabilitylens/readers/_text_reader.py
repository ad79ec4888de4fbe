"""What the readers of text logs have in common: how sure they are, and how they read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.readers._assemble import FEW
from stabilitylens.readers._large import every
from stabilitylens.readers._names import loss_rank, tells
from stabilitylens.readers._rows import UNCOUNTED, Mark, runs_from_rows
from stabilitylens.readers._source import HEAD, blocks, head, is_text, lines
from stabilitylens.readers._table import Alike
from stabilitylens.readers._text_numbers import has_decimal_commas, with_points
from stabilitylens.readers._text_rows import Row, rows_of, rows_of_blocks
from stabilitylens.readers._unreadable import why_unreadable
from stabilitylens.run import Run, Series

Rows = Iterator[Row | Alike | Mark]
#: one tool's lines were found; lines with losses; lines with counters only; nothing yet in a file that goes on
SIGNED, LOGS, HINTS, COUNTS, MAYBE = 0.8, 0.5, 0.3, 0.2, 0.05
#: so many lines make a log. *Heuristic*.
MANY = 5


def begin_of(path: Path) -> str:
    """The first lines of a text, about 256 KB; nothing of what is no text."""
    if not is_text(head(path)):
        return ""
    stat = path.stat()
    return _begin(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _begin(path: Path, modified: int, size: int) -> str:
    found, left = [], HEAD
    for line in lines(path):
        found.append(line[:left])
        left -= len(line) + 1
        if left <= 0:
            break
    return "\n".join(found)


def signed(pattern: str) -> Callable[[Path], float]:
    """A sniff that is sure where a pattern occurs in the head of a text."""
    compiled = re.compile(pattern, re.MULTILINE)
    return lambda path: SIGNED if compiled.search(begin_of(path)) else 0.0


def sureness(path: Path) -> float:
    """How sure one can be that free text is a log: by its lines that hold a loss and are no JSON."""
    begin = begin_of(path)
    if not begin:
        return 0.0
    rows = [row for row in rows_of(line for line in begin.split("\n") if line[:2] != '{"') if not isinstance(row, Mark)]
    losses = sum(any(map(loss_rank, row)) for row in rows)
    if losses:
        return LOGS if losses >= MANY else HINTS
    return COUNTS if len(rows) >= MANY else MAYBE if path.stat().st_size > HEAD else 0.0


def read_text(path: Path, form: str, mend: Callable[[Rows], Rows] = iter, edit: Callable[[str], str] | None = None) -> list[Run]:
    """The runs of a text log.

    Args:
        path: the log.
        form: the reader's name.
        mend: what the reader puts right in rows.
        edit: what it puts right in whole lines, many at a time, before they are read.

    Raises:
        BadInput: there is no number of any run in it.
    """
    source: Iterable[str] = blocks(path) if edit is None else map(edit, blocks(path))
    if has_decimal_commas(begin_of(path)):
        source = map(with_points, source)
    runs = [run for run in runs_from_rows(path, form, mend(rows_of_blocks(source))) if _tells(run)]
    if not runs:
        raise BadInput(why_unreadable(path))
    return runs


def _tells(run: Run) -> bool:
    """Whether a run tells of a training: by its loss, else by another number of a training; sentences hold numbers, too."""
    counted = not any(note.startswith(UNCOUNTED) for note in run.notes)
    if "loss" in run.series:
        return counted or len(run["loss"]) < MANY or run["loss"].values[0] == 0 or not all(map(_repeats, run.values()))
    return counted and any(len(series) >= FEW and tells(name) for name, series in run.series.items())


def _repeats(series: Series) -> bool:
    """Whether all values of a series are one, as in a sentence that stands in a file many times."""
    return every(lambda some: some == series.values[0], series.values)
