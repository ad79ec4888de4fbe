"""The rows that a column has numbers of: a range where they are one after the other, else an array that rises."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from stabilitylens.readers._large import empty, every, let_go, pieces

Rows = range | Int[np.ndarray, " _"]


def same(a: Rows, b: Rows) -> bool:
    """Whether rows are the same."""
    if len(a) != len(b) or not len(a):
        return len(a) == len(b)
    if isinstance(a, range) or isinstance(b, range):
        return int(a[0]) == int(b[0]) and int(a[-1]) == int(b[-1])
    return every(np.equal, a, b)


def at(rows: Rows, piece: slice) -> Int[np.ndarray, " row"]:
    """Some of the rows, one after the other, as an array."""
    some = rows[piece]
    return np.arange(some.start, some.stop) if isinstance(some, range) else some


def at_places(rows: Rows, places: Int[np.ndarray, " asked"]) -> Int[np.ndarray, " asked"]:
    """The rows at some places."""
    return rows.start + places if isinstance(rows, range) else rows[places]


def up_to(rows: Int[np.ndarray, " asked"], have: Rows) -> Int[np.ndarray, " asked"]:
    """For each row, the place of the last one up to it among others; 0 where it is before all."""
    found = rows - have.start if isinstance(have, range) else np.searchsorted(have, rows, side="right") - 1
    return np.clip(found, 0, max(len(have) - 1, 0))


def among(rows: Rows, have: Rows) -> Bool[np.ndarray, " row"]:
    """Which rows are among others."""
    out = empty(len(rows), bool)
    for piece in pieces(len(rows)):
        asked = at(rows, piece)
        out[piece] = at_places(have, up_to(asked, have)) == asked if len(have) else False
        let_go(out[piece], *(some for some in (rows, have) if isinstance(some, np.ndarray)))
    return out


def looked_up(rows: Rows, have: Rows, values: Float[np.ndarray, " _"]) -> Float[np.ndarray, " asked"]:
    """The values of some rows, NaN where a row has none; the values themselves where the rows are the same."""
    if same(rows, have):
        return values
    out = empty(len(rows), np.float64)
    for piece in pieces(len(rows)):
        asked = at(rows, piece)
        found = up_to(asked, have)
        out[piece] = np.where(at_places(have, found) == asked, values[found], np.nan)
        let_go(out[piece], values, *(some for some in (rows, have) if isinstance(some, np.ndarray)))
    return out
