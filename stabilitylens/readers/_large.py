"""Arrays with an entry a row of a log: many rows lie in temporary files that are mapped into memory, and are gone through piece by piece.

Pages of a mapped file that were looked at count as memory until they are let go; every function here lets go of a piece
before it takes the next, so that what is held at a time does not grow with the number of rows.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from stabilitylens.errors import BadInput

#: entries that are gone through at a time; bytes from which an array lies in a file; bytes of such a file, at least
PIECE, LARGE, FILE = 1 << 18, 1 << 20, 1 << 26
#: entries begin at multiples of a page's size, so that a page is of one array
_PAGE = max(mmap.ALLOCATIONGRANULARITY, mmap.PAGESIZE)


class _Space:
    """Room in temporary files, given out from front to back; a file is gone when its last array is."""

    def __init__(self) -> None:
        self.map: mmap.mmap | None = None
        self.used = 0
        self.lock = threading.Lock()

    def take(self, size: int) -> tuple[mmap.mmap, int]:
        with self.lock:
            if self.map is None or self.used + size > len(self.map):
                self.map, self.used = _mapped(max(size, FILE)), 0
            found, begin = self.map, self.used
            self.used += -(-size // _PAGE) * _PAGE
            if self.used >= len(found):
                self.map = None
            return found, begin


def _mapped(size: int) -> mmap.mmap:
    with room(), tempfile.TemporaryFile(prefix="stabilitylens-") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and the end of the process on a later write
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)


@contextmanager
def room() -> Iterator[None]:
    """Says what to do where temporary files find no room.

    Raises:
        BadInput: they do not.
    """
    try:
        yield
    except OSError as error:
        why = f"a log with this many rows needs room for temporary files, and {tempfile.gettempdir()} has none ({error.strerror or error})"
        raise BadInput(f"{why}; set TMPDIR to a folder that has") from error


_SPACE = _Space()


def empty(n: int, dtype: Any) -> np.ndarray:
    """An array of so many entries, in memory or in a file."""
    size = n * np.dtype(dtype).itemsize
    if size < LARGE:
        return np.empty(n, dtype=dtype)
    space, begin = _SPACE.take(size)
    return np.frombuffer(space, dtype=dtype, count=n, offset=begin)


def let_go(*arrays: np.ndarray) -> None:
    """Take pages of arrays out of memory where they lie in a file; they keep what they hold."""
    for array in arrays:
        if array.nbytes and (space := _map_of(array)) is not None:
            begin = array.__array_interface__["data"][0] - np.frombuffer(space, np.uint8, 1).__array_interface__["data"][0]
            first = begin // _PAGE * _PAGE
            space.madvise(mmap.MADV_DONTNEED, first, min(begin + array.nbytes, len(space)) - first)


def _map_of(array: np.ndarray) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) and hasattr(base, "madvise") and array.strides == (array.itemsize,) else None


def pieces(n: int, overlap: int = 0) -> Iterator[slice]:
    """Slices that cover so many entries, each with some entries before it."""
    for begin in range(0, n, PIECE):
        yield slice(max(begin - overlap, 0), min(begin + PIECE, n))


def together(*arrays: np.ndarray, overlap: int = 0) -> Iterator[list[np.ndarray]]:
    """The same piece of several arrays of one length; let go when the next is asked for."""
    for piece in pieces(len(arrays[0]), overlap):
        some = [array[piece] for array in arrays]
        yield some
        let_go(*some)


def each(function: Callable[..., np.ndarray], *arrays: np.ndarray, dtype: Any) -> np.ndarray:
    """What a function makes of the entries of arrays of one length."""
    out = empty(len(arrays[0]), dtype)
    for made, *some in together(out, *arrays):
        made[:] = function(*some)
    return out


def every(test: Callable[..., Bool[np.ndarray, " entry"]], *arrays: np.ndarray) -> bool:
    """Whether a test holds for all entries."""
    return all(bool(test(*some).all()) for some in together(*arrays))


def count(test: Callable[..., Bool[np.ndarray, " entry"]], *arrays: np.ndarray) -> int:
    """For how many entries a test holds."""
    return sum(int(np.count_nonzero(test(*some))) for some in together(*arrays))


def where(test: Callable[..., Bool[np.ndarray, " entry"]], *arrays: np.ndarray) -> Int[np.ndarray, " found"]:
    """The places of the entries for which a test holds, which are few."""
    found = [piece.start + np.flatnonzero(test(*(array[piece] for array in arrays))) for piece in _gone_through(*arrays)]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _gone_through(*arrays: np.ndarray) -> Iterator[slice]:
    for piece in pieces(len(arrays[0])):
        yield piece
        let_go(*(array[piece] for array in arrays))


def chosen(mask: Bool[np.ndarray, " entry"], values: np.ndarray) -> np.ndarray:
    """The entries at which a mask holds, as ``values[mask]``."""
    out = empty(count(lambda some: some, mask), values.dtype)
    at = 0
    for here, some in together(mask, values):
        picked = some[here]
        out[at:at + len(picked)] = picked
        let_go(out[at:at + len(picked)])
        at += len(picked)
    return out


def extremes(values: Int[np.ndarray, " entry"]) -> tuple[int, int]:
    """The least and the greatest of at least one entry."""
    found = [(int(some.min()), int(some.max())) for (some,) in together(values)]
    return min(least for least, _ in found), max(most for _, most in found)


def joined(arrays: list[np.ndarray]) -> np.ndarray:
    """Arrays one after the other."""
    if len(arrays) == 1:
        return arrays[0]
    out, begin = empty(sum(map(len, arrays)), np.result_type(*arrays)), 0
    for array in arrays:
        for made, some in together(out[begin:begin + len(array)], array):
            made[:] = some
        begin += len(array)
    return out


def rising(values: np.ndarray) -> bool:
    """Whether each entry is greater than the one before it."""
    return all(bool((some[1:] > some[:-1]).all()) for (some,) in together(values, overlap=1))
