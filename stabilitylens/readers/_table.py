"""Table: the numbers of rows, column by column, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.readers._column import Column, Spill
from stabilitylens.readers._large import chosen, count, each, where
from stabilitylens.readers._names import EVALUATION, ROW_TYPES, normal, step_rank
from stabilitylens.readers._numbers import number
from stabilitylens.readers._places import among, at_places

#: fields beyond so many are not kept; nested deeper than this neither, nor longer lists
COLUMNS, DEEP, LONG = 4096, 6, 32
#: numbers of all columns that are held in memory before they go to a file
HELD = 1 << 22
#: fewer rows than this are added one by one; so many are added at once
FEW, AT_ONCE = 8, 1024
Row = Mapping[str, Any]


class Alike(dict[str, "list[float] | array"]):
    """Rows with the same fields, by field; every field has a number of each row."""

    def rows(self) -> list[dict[str, float]]:
        """The rows, one by one."""
        return [dict(zip(self, numbers, strict=True)) for numbers in zip(*self.values(), strict=True)]


def _numbers(values: Sequence[Any]) -> array | None:
    """Values that are all numbers, or all spelled as Python spells them; None for others."""
    try:
        return array("d", values)
    except OverflowError:  # an integer beyond float64
        return None
    except TypeError:
        pass
    try:
        return array("d", map(float, values)) if set(map(type, values)) == {str} else None
    except ValueError:
        return None


@dataclass(frozen=True)
class Cells:
    """Numbers of a column, and the rows of a block that have them; None where all have."""

    places: Int[np.ndarray, " cell"] | None
    values: Float[np.ndarray, " cell"]


@dataclass(frozen=True)
class Block:
    """Rows that come column by column: how many, and the numbers of each field."""

    rows: int
    columns: dict[str, Cells]


def together(rows: Iterable[Any]) -> Iterator[Any]:
    """Rows with the same fields as columns, many at once; everything else one by one, in its order."""
    for kind, same in groupby(rows, type):
        taken = _at_once if kind is dict else iter
        yield from taken(same)


def _at_once(rows: Iterator[Any]) -> Iterator[Any]:
    while some := list(islice(rows, AT_ONCE)):
        yield from _joined(some)


def _joined(rows: list[Any]) -> Sequence[Any]:
    found = _columns(rows) if len(rows) >= FEW else None
    return rows if found is None else (Alike(found),)


def _columns(rows: list[Any]) -> dict[str, Any] | None:
    """The numbers of rows that all have the fields of the first; None where they do not, or where a value is no number."""
    first = rows[0]
    width = len(first)
    if width < 2 or set(map(len, rows)) != {width} or any(key.lower() in ROW_TYPES for key in first):
        return None
    try:
        cells = list(chain.from_iterable(map(itemgetter(*first), rows)))
    except KeyError:
        return None
    whole = _numbers(cells)
    if whole is not None:
        return {key: whole[i::width] for i, key in enumerate(first)}
    columns = {key: _numbers(cells[i::width]) for i, key in enumerate(first)}
    return None if any(numbers is None for numbers in columns.values()) else columns


class Table:
    """Columns by the name of their field, in the order of the file.

    Attributes:
        rows: number of rows; left_out: number of values of fields beyond ``COLUMNS``.
    """

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.rows = 0
        self.left_out = 0
        self._held = 0
        self._spill = Spill()
        self._seen: set[str] = set()
        self._kinds: list[str] = []

    def add(self, row: Row) -> None:
        """Append a row; what is no number and spells none is left out."""
        prefix = self._part_of(row)
        for key, value in row.items():
            if type(value) is float and not prefix and key in self.columns:
                self.columns[key].add(self.rows, value)
                continue
            self._add(prefix + key if prefix and step_rank(key) is None else key, value, DEEP)
        self.rows += 1
        self._hold(len(self.columns))

    def add_alike(self, rows: list[Row]) -> None:
        """Append rows with the same fields in the same order; faster than one by one."""
        if len(rows) < FEW or any(key.lower() in ROW_TYPES for key in rows[0]):
            for row in rows:
                self.add(row)
            return
        begin = self.rows
        for key in rows[0]:
            values = [row[key] for row in rows]
            numbers = _numbers(values)
            if numbers is not None and self._has_place(key):
                self.columns.setdefault(key, Column(begin, self._spill)).extend(begin, numbers)
                continue
            for self.rows, value in enumerate(values, begin):
                self._add(key, value, DEEP)
        self.rows = begin + len(rows)
        self._hold(len(rows) * len(self.columns))

    def add_block(self, block: Block) -> None:
        """Append rows that come column by column, some fields not in all rows."""
        begin = self.rows
        for key, cells in block.columns.items():
            if self._has_place(key):
                column = self.columns.setdefault(key, Column(begin if cells.places is None else begin + int(cells.places[0]), self._spill))
                column.extend(begin, array("d", cells.values.tobytes())) if cells.places is None else column.extend_at(begin + cells.places, cells.values)
            else:
                self.left_out += len(cells.values)
        self.rows = begin + block.rows
        self._hold(sum(len(cells.values) for cells in block.columns.values()))

    def add_columns(self, some: Alike) -> None:
        """Append rows that come as columns."""
        begin = self.rows
        for key, numbers in some.items():
            if self._has_place(key):
                self.columns.setdefault(key, Column(begin, self._spill)).extend(begin, numbers if isinstance(numbers, array) else array("d", numbers))
            else:
                self.left_out += len(numbers)
        self.rows = begin + len(next(iter(some.values())))
        self._hold((self.rows - begin) * len(some))

    def _hold(self, more: int) -> None:
        """Put numbers away where those in memory have become many; a number may have its row beside it."""
        self._held += 2 * more
        if self._held >= HELD:
            self._held = sum(column.put_away() for column in self.columns.values())

    def set_apart(self, rows: Int[np.ndarray, " row"], name: str) -> None:
        """Move what columns have in some rows to columns of their own, unless a column has nothing else.

        Args:
            rows: the rows, in order.
            name: of the new columns, with ``{}`` for the old name.
        """
        for key, column in list(self.columns.items()):
            inside = among(column.rows(), rows)
            if step_rank(key) is None and 0 < count(np.asarray, inside) < len(inside):
                for name_, mask in ((key, each(np.logical_not, inside, dtype=bool)), (name.format(key), inside)):
                    self.columns[name_] = Column.of(at_places(column.rows(), where(np.asarray, mask)), chosen(mask, column.values()))

    def _has_place(self, key: str) -> bool:
        column = self.columns.get(key)
        return len(self.columns) < COLUMNS if column is None else column.last < self.rows

    def _add(self, key: str, value: Any, deep: int) -> None:
        if isinstance(value, str):
            value = number(value)
        if value is None:
            return
        if isinstance(value, float | int):
            self._put(key, value)
        elif deep and isinstance(value, Mapping):
            for name, inner in value.items():
                self._add(f"{key}/{name}", inner, deep - 1)
        elif deep and isinstance(value, list) and len(value) <= LONG:
            for i, inner in enumerate(value):
                self._add(f"{key}/{i}", inner, deep - 1)

    def _put(self, key: str, value: float) -> None:
        column = self.columns.get(key)
        if column is None:
            if len(self.columns) >= COLUMNS:
                self.left_out += 1
                return
            column = self.columns[key] = Column(self.rows, self._spill)
        try:
            column.add(self.rows, float(value))
        except OverflowError:  # an integer beyond float64
            column.add(self.rows, float("inf") if value > 0 else float("-inf"))

    def _part_of(self, row: Row) -> str:
        """``val/`` and its like before the fields of a row that says that it is no training row."""
        if not self._seen.issuperset(row):
            self._kinds += [key for key in row if key not in self._seen and key.lower() in ROW_TYPES]
            self._seen.update(row)
        for key in self._kinds:
            value = row.get(key)
            if isinstance(value, str) and len(value) < 20:
                words = normal(value)
                if not EVALUATION.isdisjoint(words.split()):
                    return words.replace(" ", "_") + "/"
        return ""
