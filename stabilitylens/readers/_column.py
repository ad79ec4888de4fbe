"""Column: the numbers of one field and the rows they are of, in memory or, where they are many, in a temporary file."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.readers._large import empty, let_go, pieces, room
from stabilitylens.readers._places import Rows

#: fewer numbers of a column are not worth going to the file
FEW = 256


class Spill:
    """The temporary file of a table, to which the numbers of all its columns go in turn."""

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None

    def add(self, numbers: array[Any]) -> int:
        """Append numbers; returns where they begin."""
        with room():
            self.file = self.file or tempfile.TemporaryFile(prefix="stabilitylens-")
            begin = self.file.seek(0, 2)
            numbers.tofile(self.file)
            return begin

    def read(self, begin: int, out: np.ndarray) -> None:
        """Fill an array with the numbers that begin at a place."""
        assert self.file is not None
        self.file.seek(begin)
        self.file.readinto(memoryview(out).cast("B"))  # type: ignore[attr-defined, arg-type]
        let_go(out)


class Store:
    """Numbers that are appended, and read when all are there."""

    __slots__ = ("append", "length", "parts", "recent", "spill")

    def __init__(self, kind: str, spill: Spill) -> None:
        self.recent: array[Any] = array(kind)
        self.append: Callable[[float], None] = self.recent.append
        self.spill = spill
        self.parts: list[tuple[int, int]] = []
        self.length = 0

    def put_away(self) -> None:
        """Move what is in memory to the file."""
        self.parts.append((self.spill.add(self.recent), len(self.recent)))
        self.length += len(self.recent)
        del self.recent[:]

    def fill(self, out: np.ndarray) -> None:
        """Write all of them to an array that ends with them."""
        at = len(out) - self.length - len(self.recent)
        for begin, count in self.parts:
            self.spill.read(begin, out[at:at + count])
            at += count
        out[at:] = self.recent

    def numbers(self) -> np.ndarray:
        """All of them, not to be written to."""
        kind = np.int64 if self.recent.typecode == "q" else np.float64
        if not self.parts:
            return np.frombuffer(self.recent, dtype=kind)
        out = empty(self.length + len(self.recent), kind)
        self.fill(out)
        return out


class Column:
    """The numbers of one field, and which rows they are of; rows one after the other take no memory.

    Attributes:
        first, last: its rows.
        dense: so many rows from the first on are one after the other; those behind are in ``places``.
    """

    __slots__ = ("_rows", "_values", "dense", "first", "last", "places", "store")

    def __init__(self, row: int, spill: Spill) -> None:
        self.first, self.last, self.dense = row, row - 1, 0
        self.store = Store("d", spill)
        self.places: Store | None = None
        self._rows: Rows | None = None
        self._values: np.ndarray | None = None

    @classmethod
    def of(cls, rows: Int[np.ndarray, " point"], values: Float[np.ndarray, " point"]) -> Column:
        """A column that is complete."""
        out = cls(int(rows[0]), Spill())
        out.last = int(rows[-1])
        out._rows, out._values = rows, values
        return out

    def _places(self, row: int) -> Store | None:
        """Where the rows go from this one on; None while they are one after the other."""
        if self.places is None and row != self.last + 1:
            self.dense, self.places = self.last + 1 - self.first, Store("q", self.store.spill)
        return self.places

    def add(self, row: int, value: float) -> None:
        """Append the value of a row; of several values in one row the first counts."""
        if row == self.last and row >= self.first:
            return
        if self.places is not None or row != self.last + 1:
            self._places(row).append(row)  # type: ignore[union-attr]
        self.last = row
        self.store.append(value)

    def extend(self, row: int, values: array[Any]) -> None:
        """Append the values of rows one after the other, all later than the last."""
        if (places := self._places(row)) is not None:
            places.recent.extend(range(row, row + len(values)))
        self.last = row + len(values) - 1
        self.store.recent.extend(values)

    def extend_at(self, rows: Int[np.ndarray, " cell"], values: Float[np.ndarray, " cell"]) -> None:
        """Append the values of some rows, all later than the last."""
        if (places := self._places(-1)) is not None:
            places.recent.frombytes(rows.astype(np.int64).tobytes())
        self.store.recent.frombytes(values.tobytes())
        self.last = int(rows[-1])

    def put_away(self) -> int:
        """Move what is in memory to a file, if it is much; returns how many numbers stay."""
        stay = 0
        for store in (self.store, self.places):
            if store is not None:
                if len(store.recent) >= FEW:
                    store.put_away()
                stay += len(store.recent)
        return stay

    def rows(self) -> Rows:
        """The row of each number."""
        if self._rows is None and self.places is None:
            self._rows = range(self.first, self.last + 1)
        elif self._rows is None:
            assert self.places is not None
            self._rows = out = empty(len(self.values()), np.int64)
            for piece in pieces(self.dense):
                out[piece] = np.arange(self.first + piece.start, self.first + piece.stop)
                let_go(out[piece])
            self.places.fill(out)
        return self._rows

    def values(self) -> Float[np.ndarray, " point"]:
        """The numbers."""
        if self._values is None:
            self._values = self.store.numbers()
        return self._values
