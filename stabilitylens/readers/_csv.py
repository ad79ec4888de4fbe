"""How a table in text is laid out: what separates its cells, and whether its first line names them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stabilitylens.readers._names import known, loss_rank, normal, step_rank
from stabilitylens.readers._numbers import number
from stabilitylens.readers._source import head, is_text, lines

#: lines of the head that are looked at, and the share of them that has to fit. *Heuristic*.
LOOKED_AT, FITS = 200, 0.8
_SEPARATORS = (",", "\t", ";", "|", " ")


@dataclass(frozen=True)
class Layout:
    """What separates the cells, the names of the columns, whether they stand in the file, and whether each has one."""

    separator: str
    names: tuple[str, ...]
    named: bool
    exact: bool = True

    @property
    def sure(self) -> float:
        """How sure it is that this is the table of a training."""
        if not self.named:
            return 0.35
        speaks = any(loss_rank(name) or step_rank(name) is not None or known(name) or " - " in name for name in self.names)
        return 0.75 if speaks else 0.45


def layout_of(path: Path) -> Layout | None:
    """The layout of a table; None for what is none."""
    begin = head(path)
    if not is_text(begin):
        return None
    some = begin.decode("utf-8-sig", "replace").replace("\0", "")
    rows = [line for line in some.splitlines()[:LOOKED_AT] if line.strip() and not line.startswith("#")]
    whole = rows[:-1] if len(begin) == 1 << 18 and len(rows) < LOOKED_AT else rows
    found = [layout for separator in _SEPARATORS if (layout := _layout(whole, separator)) is not None]
    return max(found, key=lambda layout: (layout.sure, layout.exact, len(layout.names)), default=None)


def _layout(text: list[str], separator: str) -> Layout | None:
    rows = [[cell.strip() for cell in row] for row in _parsed(map(str.strip, text) if separator == " " else text, separator)]
    if len(rows) < 2 or (separator == " " and len(rows[0]) == 1):
        return None
    width, count = Counter(map(len, rows[1:])).most_common(1)[0]
    body = [row for row in rows[1:] if len(row) == width]
    if count < FITS * len(rows[1:]) or not _has_numbers(body) or (width == 1 and len(rows) < 5):
        return None
    first = rows[0]
    if separator != " " and len(first) in (width, width - 1) and not any(number(cell) is not None for cell in first) and any(first):
        if width == 1 and not loss_rank(first[0]):
            return None
        names = ("index",) * (width - len(first)) + tuple(first)
        return Layout(separator, _unique(names), True, len(first) == width)
    if len(first) == width and all(number(cell) is not None for row in [first, *body] for cell in row):
        counts = width > 1 and _counts([first[0], *(row[0] for row in body)])
        return Layout(separator, ("step" if counts else "column 1", *(f"column {i + 1}" for i in range(1, width))), False)
    return None


def _has_numbers(body: list[list[str]]) -> bool:
    """Whether some column is of numbers, apart from empty cells."""
    for cells in zip(*body, strict=True):
        full = [cell for cell in cells if cell]
        if full and sum(number(cell) is not None for cell in full) >= FITS * len(full):
            return True
    return False


def _counts(column: list[str]) -> bool:
    """Whether the first column of a table without a header counts."""
    numbers = [number(cell) or 0.0 for cell in column]
    return all(value.is_integer() for value in numbers) and all(a < b for a, b in zip(numbers, numbers[1:], strict=False))


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    seen: Counter[str] = Counter()
    out = []
    for i, name in enumerate(names):
        name = name or ("index" if i == 0 else f"column {i + 1}")
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(out)


def _parsed(text: Iterable[str], separator: str) -> Iterator[list[str]]:
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True)
    while True:
        try:
            yield from reader
        except csv.Error:
            continue
        return


def rows(path: Path, layout: Layout, skipped: list[int]) -> Iterator[list[str]]:
    """The rows of a table, the header and lines that repeat it left out.

    The number of lines that do not fit is added to ``skipped``.
    """
    names, width = layout.names, len(layout.names)
    comma = layout.separator == ";"
    text = (line.strip() if layout.separator == " " else line for line in lines(path) if line and line[0] != "#" and not line.isspace())
    for i, row in enumerate(_parsed(text, layout.separator)):
        if len(row) != width and (len(row) < width - 1 or len(row) > width):
            skipped[0] += bool(i or not layout.named)
        elif not layout.named or (i and (row[0] != names[0] or not _repeats(row, names))):
            yield [cell.replace(",", ".") for cell in row] if comma else row


def cells(path: Path, layout: Layout, skipped: list[int]) -> Iterator[dict[str, str]]:
    """As ``rows``, by the names of the columns, empty cells left out."""
    for row in rows(path, layout, skipped):
        yield {name: cell for name, cell in zip(layout.names, row, strict=False) if cell}


def _repeats(row: list[str], names: tuple[str, ...]) -> bool:
    return all(cell.strip() == name for cell, name in zip(row, names, strict=False) if cell)


def is_time(name: str) -> bool:
    """Whether a column is the time of a row."""
    words = normal(name).split()
    return bool({"time", "timestamp", "date", "datetime", "runtime", "elapsed"} & set(words))
