"""Column: the numbers of one field and the rows they are of, in memory or, where they are many, in a temporary file."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from jaxtyping import Float, Int

#: numbers of a column that are held in memory before they go to a file
IN_MEMORY = 1 << 20


class Store:
    """Numbers that are appended, and read when all are there; many lie in a temporary file, mapped into memory."""

    __slots__ = ("append", "file", "recent")

    def __init__(self, kind: str) -> None:
        self.recent: array[Any] = array(kind)
        self.append: Callable[[float], None] = self.recent.append
        self.file: IO[bytes] | None = None

    def put_away(self) -> None:
        """Move what is in memory to the file."""
        self.file = self.file or tempfile.TemporaryFile(prefix="stabilitylens-")
        self.recent.tofile(self.file)
        del self.recent[:]

    def numbers(self) -> np.ndarray:
        """All of them, not to be written to."""
        kind = np.int64 if self.recent.typecode == "q" else np.float64
        if self.file is None:
            return np.frombuffer(self.recent, dtype=kind)
        self.put_away()
        self.file.flush()
        return np.memmap(self.file, dtype=kind, mode="r").view(np.ndarray)


class Column:
    """The numbers of one field, and which rows they are of; rows one after the other take no memory."""

    __slots__ = ("first", "last", "places", "store")

    def __init__(self, row: int) -> None:
        self.first, self.last = row, row - 1
        self.store = Store("d")
        self.places: Store | None = None

    def add(self, row: int, value: float) -> None:
        """Append the value of a row; of several values in one row the first counts."""
        if row == self.last and row >= self.first:
            return
        if self.places is not None:
            self.places.append(row)
        elif row != self.last + 1:
            self.places = Store("q")
            self.places.recent.extend(range(self.first, self.last + 1))
            self.places.append(row)
        self.last = row
        self.store.append(value)

    def extend(self, row: int, values: array) -> None:
        """Append the values of rows one after the other, all later than the last."""
        if self.places is None and row != self.last + 1:
            self.places = Store("q")
            self.places.recent.extend(range(self.first, self.last + 1))
        if self.places is not None:
            self.places.recent.extend(range(row, row + len(values)))
        self.last = row + len(values) - 1
        self.store.recent.extend(values)

    def extend_at(self, rows: Int[np.ndarray, " cell"], values: Float[np.ndarray, " cell"]) -> None:
        """Append the values of some rows, all later than the last."""
        if self.places is None:
            self.places = Store("q")
            self.places.recent.extend(range(self.first, self.last + 1))
        self.places.recent.frombytes(rows.astype(np.int64).tobytes())
        self.store.recent.frombytes(values.tobytes())
        self.last = int(rows[-1])

    def put_away(self) -> None:
        """Move what is in memory to a file, if it is much."""
        for store in (self.store, self.places):
            if store is not None and len(store.recent) >= IN_MEMORY:
                store.put_away()

    @classmethod
    def of(cls, rows: Int[np.ndarray, " point"], values: Float[np.ndarray, " point"]) -> Column:
        """A column of some rows."""
        out = cls(int(rows[0]))
        out.store.recent.frombytes(values.astype(np.float64).tobytes())
        out.places = Store("q")
        out.places.recent.frombytes(rows.astype(np.int64).tobytes())
        out.last = int(rows[-1])
        return out

    def rows(self) -> Int[np.ndarray, " point"]:
        """The row of each number."""
        return np.arange(self.first, self.last + 1) if self.places is None else self.places.numbers()

    def values(self) -> Float[np.ndarray, " point"]:
        """The numbers."""
        return self.store.numbers()
