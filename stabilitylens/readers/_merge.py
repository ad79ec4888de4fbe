"""Puts the sessions of a run together: what was superseded apart, and the last record of a step counts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.readers._large import chosen, count, each, every, joined, rising
from stabilitylens.run import Event


@dataclass(frozen=True)
class Piece:
    """A stretch of a series in the order it was written."""

    steps: Int[np.ndarray, " point"]
    values: Float[np.ndarray, "point *axes"]
    axes: tuple[str, ...] = ()

    def between(self, first: float, end: float) -> Piece:
        """The points from a step up to, without, another; the piece itself where that is all."""
        if (first, end) == (-np.inf, np.inf):
            return self
        inside = each(lambda steps: (steps >= first) & (steps < end), self.steps, dtype=bool)
        found = count(np.asarray, inside)
        if found == len(inside):
            return self
        begin = int(inside.argmax())
        if inside[begin:begin + found].all():  # a slice stays mapped into memory
            return replace(self, steps=self.steps[begin:begin + found], values=self.values[begin:begin + found])
        return replace(self, steps=chosen(inside, self.steps), values=chosen(inside, self.values) if self.values.ndim == 1 else self.values[inside])


@dataclass
class Session:
    """What one session of a run recorded.

    Attributes:
        restart: from this step on, it supersedes earlier sessions; None where it does not.
        series, summaries: pieces by name; summaries were derived for TensorBoard.
        headers: time and JSON of each header.
        records: number of records that could be read.
    """

    restart: int | None = None
    series: dict[str, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    summaries: dict[str, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    events: list[Event] = field(default_factory=list)
    headers: list[tuple[float, str]] = field(default_factory=list)
    records: int = 0

    def between(self, first: float, end: float) -> Session:
        """What it recorded from a step up to, without, another."""
        return replace(
            self,
            series=_between(self.series, first, end),
            summaries=_between(self.summaries, first, end),
            events=[event for event in self.events if first <= event.step < end],
        )


def _between(pieces: dict[str, list[Piece]], first: float, end: float) -> dict[str, list[Piece]]:
    cut = {name: [part for piece in some if len((part := piece.between(first, end)).steps)]
           for name, some in pieces.items()}
    return {name: some for name, some in cut.items() if some}


def split(sessions: list[Session]) -> list[tuple[Session, Session]]:
    """What counts of each session, and what a later one superseded."""
    out, end = [], np.inf
    for session in reversed(sessions):
        out.append((session.between(-np.inf, end), session.between(end, np.inf)))
        end = min(end, session.restart if session.restart is not None else np.inf)
    return out[::-1]


def stack(pieces: list[Piece]) -> Piece:
    """Pieces one after the other, those of a smaller shape padded with NaN."""
    if len(pieces) == 1:
        return pieces[0]
    shape = tuple(max(sizes) for sizes in zip(*(piece.values.shape[1:] for piece in pieces), strict=True))
    values = np.concatenate([_pad(piece.values, shape) for piece in pieces]) if shape else joined([piece.values for piece in pieces])
    return Piece(joined([piece.steps for piece in pieces]), values, pieces[-1].axes)


def join(pieces: list[Piece]) -> Piece:
    """One piece with strictly increasing steps; of several records of a step the last counts.

    A single piece in order is returned as it is, so that what is mapped into memory stays so.
    """
    whole = stack(pieces)
    if rising(whole.steps):
        return whole
    if whole.values.ndim == 1 and every(np.greater_equal, whole.steps[1:], whole.steps[:-1]):
        goes_on = joined([each(np.greater, whole.steps[1:], whole.steps[:-1], dtype=bool), np.ones(1, dtype=bool)])
        return replace(whole, steps=chosen(goes_on, whole.steps), values=chosen(goes_on, whole.values))
    order = np.argsort(whole.steps, kind="stable")
    last = order[np.append(np.diff(whole.steps[order]) > 0, True)]
    return replace(whole, steps=whole.steps[last], values=whole.values[last])


def by_axes(pieces: dict[str, list[Piece]]) -> dict[str, list[Piece]]:
    """Pieces by name; those with another number of axes than the first of their name get a name of their own."""
    out: dict[str, list[Piece]] = {}
    for name, some in pieces.items():
        for piece in some:
            n = piece.values.ndim - 1
            key = name if piece.values.ndim == some[0].values.ndim else f"{name} with {n} axes"
            out.setdefault(key, []).append(piece)
    return out


def _pad(values: Float[np.ndarray, "point *axes"], shape: tuple[int, ...]) -> Float[np.ndarray, "point *padded"]:
    if values.shape[1:] == shape:
        return values
    out = np.full((len(values), *shape), np.nan, dtype=values.dtype)
    out[tuple(slice(n) for n in values.shape)] = values
    return out
