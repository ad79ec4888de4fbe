"""Steps, run and session of every row of a log, told by the rows of its loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from stabilitylens.readers._large import chosen, each, empty, every, let_go, pieces, together
from stabilitylens.readers._merge import Piece, Session
from stabilitylens.readers._names import EPOCHS, normal, step_rank
from stabilitylens.readers._places import Rows, at, at_places, looked_up, same, up_to
from stabilitylens.readers._steps import choose_steps, filled
from stabilitylens.readers._stretches import Stretches, stretches
from stabilitylens.readers._table import Table

#: how the note begins that points are numbered from 0
UNCOUNTED = "no field counts the steps of"
#: steps are int64
_LARGEST = 2.0**62
Placed = tuple[Int[np.ndarray, " row"], Int[np.ndarray, " row"], Bool[np.ndarray, " row"]]


@dataclass
class Frame:
    """Steps, run and session of every row, told by the rows of the loss.

    Attributes:
        rows: the rows of the loss, or where there is none of the fullest column.
        step_key: the counter; own: its rows and values.
    """

    rows: Rows
    layout: Stretches
    step_key: str | None
    own: tuple[Rows, Float[np.ndarray, " row"]]
    notes: list[str]

    @classmethod
    def of(cls, table: Table, loss_key: str | None) -> Frame:
        """Choose the counter and sort the rows out."""
        lead = loss_key or max((k for k in table.columns if step_rank(k) is None), key=lambda k: _weight(table.columns[k].values()))
        rows, loss = table.columns[lead].rows(), table.columns[lead].values()
        counters = {
            key: looked_up(rows, column.rows(), column.values())
            for key, column in table.columns.items() if key != lead and (step_rank(key) is not None or normal(key) in EPOCHS)
        }
        step_key = choose_steps(counters)
        steps = filled(counters[step_key]) if step_key is not None else _numbered(len(rows))
        epochs = next((v for k, v in counters.items() if k != step_key and normal(k) in EPOCHS and every(np.isfinite, v)), None)
        own = (table.columns[step_key].rows(), table.columns[step_key].values()) if step_key else (range(0), loss[:0])
        notes = [] if step_key is not None else [f"{UNCOUNTED} {lead}: its points are numbered from 0"]
        return cls(rows, stretches(steps, loss, epochs, _reached(rows, *own)), step_key, own, notes)

    def pieces(self, rows: Rows, values: Float[np.ndarray, " row"]) -> Iterator[tuple[int, Piece]]:
        """A column, session by session."""
        steps, session, keep = self.placed(rows)
        if every(np.asarray, keep) and every(lambda some: some == session[0], session):
            yield int(session[0]), Piece(steps, values)
            return
        for number in sorted({int(one) for (some,) in together(session) for one in np.unique(some)}):
            some = each(lambda kept, which, number=number: kept & (which == number), keep, session, dtype=bool)
            if some.any():
                yield number, Piece(chosen(some, steps), chosen(some, values))

    def placed(self, rows: Rows) -> Placed:
        """Step and session of all rows of a column, and whether they count."""
        if same(rows, self.rows):
            return self.layout.steps, self.layout.session, self.layout.keep
        out = empty(len(rows), np.int64), empty(len(rows), np.int64), empty(len(rows), bool)
        for piece in pieces(len(rows)):
            for whole, some in zip(out, self.place(at(rows, piece)), strict=True):
                whole[piece] = some
                let_go(whole[piece])
            let_go(*(some for some in (rows, self.rows, *self.own) if isinstance(some, np.ndarray)), self.layout.steps)
        return out

    def place(self, rows: Int[np.ndarray, " row"]) -> Placed:
        """Step and session of some rows, and whether they count."""
        layout = self.layout
        before = up_to(rows, self.rows)
        steps = layout.steps[before]
        if len(self.own[0]):
            there = up_to(rows, self.own[0])
            stated = self.own[1][there]
            usable = (at_places(self.own[0], there) == rows) & (np.abs(stated) < _LARGEST)
            steps = np.where(usable, np.where(usable, stated, 0).astype(np.int64) + layout.shift[before], steps)
        return steps, layout.session[before], layout.keep[before] | (at_places(self.rows, before) != rows)

    def by_run(self, sessions: dict[int, Session]) -> Iterator[list[Session]]:
        """The sessions of each run; all but the first say from where they supersede."""
        runs: dict[int, dict[int, int]] = {}
        for run, number, first in self.layout.sessions():
            runs.setdefault(run, {})[number] = first
        for _, mine in sorted(runs.items()):
            some = [sessions[number] for number in sorted(mine) if number in sessions]
            for number, session in zip(sorted(mine)[1:], some[1:], strict=True):
                session.restart = mine[number]
            if some:
                yield some


def _numbered(n: int) -> Int[np.ndarray, " row"]:
    out = empty(n, np.int64)
    for piece in pieces(n):
        out[piece] = np.arange(piece.start, piece.stop)
        let_go(out[piece])
    return out


def _weight(values: Float[np.ndarray, " row"]) -> tuple[bool, int]:
    """How much of a run a column tells: what never moves tells nothing."""
    return not every(lambda some: some == values[0], values), len(values)


def _reached(rows: Rows, own: Rows, values: Float[np.ndarray, " row"]) -> Int[np.ndarray, " point"] | None:
    """The highest step of any row from the loss's row before to each of the loss's rows."""
    if not len(own) or len(own) == len(rows) or rows[-1] > own[-1]:
        return None
    out = empty(len(rows), np.int64)
    for piece in pieces(len(rows)):
        begins = _from(at(rows, slice(max(piece.start - 1, 0), piece.stop)), own)
        some = values[begins[0]:begins[-1] + 1]
        usable = np.where(np.abs(some) < _LARGEST, some, 0).astype(np.int64)
        highest = np.maximum.reduceat(usable, begins - begins[0])[:-1]
        out[piece] = highest if piece.start else np.append(usable[0], highest)
        let_go(out[piece], values, *(some for some in (rows, own) if isinstance(some, np.ndarray)))
    return out


def _from(rows: Int[np.ndarray, " row"], have: Rows) -> Int[np.ndarray, " row"]:
    """For each row, the place of the first one from it on among others."""
    return np.clip(rows - have.start, 0, len(have)) if isinstance(have, range) else np.searchsorted(have, rows)
