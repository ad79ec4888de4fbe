"""Table: the numbers of rows, column by column, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.readers._names import EVALUATION, ROW_TYPES, normal, step_rank
from stabilitylens.readers._numbers import number

#: fields beyond so many are not kept; nested deeper than this neither, nor longer lists
COLUMNS, DEEP, LONG = 4096, 6, 32


class Column:
    """The numbers of one field, and which rows they are of; rows one after the other take no memory."""

    __slots__ = ("first", "last", "numbers", "places")

    def __init__(self, row: int) -> None:
        self.first, self.last = row, -1
        self.numbers = array("d")
        self.places: array | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, row: int, value: float) -> None:
        """Append the value of a row; of several values in one row the first counts."""
        if row == self.last:
            return
        self.last = row
        if self.places is not None:
            self.places.append(row)
        elif row != self.first + len(self.numbers):
            self.places = array("q", range(self.first, self.first + len(self.numbers)))
            self.places.append(row)
        self.numbers.append(value)

    def rows(self) -> Int[np.ndarray, " point"]:
        """The row of each number."""
        if self.places is None:
            return np.arange(self.first, self.first + len(self.numbers))
        return np.frombuffer(self.places, dtype=np.int64)

    def values(self) -> Float[np.ndarray, " point"]:
        """The numbers."""
        return np.frombuffer(self.numbers, dtype=np.float64)


class Table:
    """Columns by the name of their field, in the order of the file.

    Attributes:
        rows: number of rows; left_out: number of values of fields beyond ``COLUMNS``.
    """

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.rows = 0
        self.left_out = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; what is no number and spells none is left out."""
        prefix = self._part_of(row)
        for key, value in row.items():
            self._add(prefix + key if prefix and step_rank(key) is None else key, value, DEEP)
        self.rows += 1

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
            column = self.columns[key] = Column(self.rows)
        try:
            column.add(self.rows, float(value))
        except OverflowError:  # an integer beyond float64
            column.add(self.rows, float("inf") if value > 0 else float("-inf"))

    def _part_of(self, row: Mapping[str, Any]) -> str:
        """``val/`` and its like before the fields of a row that says that it is no training row."""
        for key, value in row.items():
            if isinstance(value, str) and len(value) < 20 and key.lower() in ROW_TYPES:
                words = normal(value)
                if not EVALUATION.isdisjoint(words.split()):
                    return words.replace(" ", "_") + "/"
        return ""
