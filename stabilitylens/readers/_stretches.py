"""Tells apart what one file holds: runs after each other, writers that interleave, resumes, epochs that count anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from stabilitylens.readers._interleaved import interleaved
from stabilitylens.readers._large import (
    chosen,
    count,
    each,
    empty,
    every,
    extremes,
    let_go,
    pieces,
    rising,
    together,
    where,
)
from stabilitylens.readers._twins import without_twins

#: an epoch is at most so much longer than another of its run. *Heuristic*.
LONGER = 1.1
#: steps that are repeated on this share of rows number no rows. *Heuristic*.
REPEATED = 0.3
#: so many steps that only fall were written backwards, or count what is left. *Heuristic*.
FEW = 8
#: so many rows at the head of a file tell how far apart steps are. *Heuristic*.
LOOKED_AT = 1 << 20

Steps = Int[np.ndarray, " row"]


@dataclass
class Stretches:
    """Rows of the loss, sorted out.

    Attributes:
        keep: which rows count; the others are rows written twice.
        steps: of each row, so that they rise strictly within a session.
        run, session: the number of each row's run, and of its session over all runs; a later session of a run supersedes
            the earlier ones from its first step on.
        shift: what was added to the file's own steps.
        notes: a sentence on everything that was found.
    """

    keep: Bool[np.ndarray, " row"]
    steps: Steps
    run: Steps
    session: Steps
    shift: Steps
    notes: list[str] = field(default_factory=list)

    def sessions(self) -> Iterator[tuple[int, int, int]]:
        """Run, number and first step of each session that has rows that count."""
        seen: set[int] = set()
        for keep, run, session, steps in together(self.keep, self.run, self.session, self.steps):
            rows = np.flatnonzero(keep)
            for number, first in zip(*np.unique(session[rows], return_index=True), strict=True):
                if int(number) not in seen:
                    seen.add(int(number))
                    yield int(run[rows[first]]), int(number), int(steps[rows[first]])


@dataclass
class _Kept:
    """The rows that count, without the others: their place in the file, steps and loss."""

    place: Steps | None
    steps: Steps
    loss: Float[np.ndarray, " row"]

    @classmethod
    def of(cls, out: Stretches, loss: Float[np.ndarray, " row"]) -> _Kept:
        if every(np.asarray, out.keep):
            return cls(None, out.steps, loss)
        return cls(chosen(out.keep, _places(len(loss))), chosen(out.keep, out.steps), chosen(out.keep, loss))

    def at(self, rows: Int[np.ndarray, " some"]) -> Int[np.ndarray, " some"]:
        """The places in the file of some of them."""
        return rows if self.place is None else self.place[rows]


def stretches(
    steps: Steps, loss: Float[np.ndarray, " row"], epochs: Float[np.ndarray, " row"] | None = None, reached: Steps | None = None
) -> Stretches:
    """Sort rows of the loss out by their steps, and where those leave it open by the loss.

    Args:
        steps: as the file has them, in its order.
        loss: of the same rows.
        epochs: of the same rows, where the file has an epoch beside the steps.
        reached: the highest step that any row has had since the loss's row before, that one included.
    """
    zeros = np.broadcast_to(np.int64(0), len(steps))
    out = Stretches(np.broadcast_to(np.True_, len(steps)), steps, zeros, zeros, zeros)
    if rising(steps):
        return out
    if len(steps) > FEW and every(np.less, steps[1:], steps[:-1]):
        _turn(out, loss)
        return out
    if (keep := without_twins(steps, loss, reached)) is not None:
        out.keep = keep
        out.notes.append(f"{count(np.logical_not, keep)} rows repeat the step and loss of another and were left out")
    kept = _Kept.of(out, loss)
    if (writers := interleaved(out.keep, kept.steps, kept.loss, _stride(kept.steps))) is not None:
        out.keep, out.run, out.session = writers.keep, writers.number, writers.number
        out.notes += writers.notes
        return out
    _restarts(out, kept, epochs, reached)
    if _repeats(out) >= REPEATED * max(count(np.asarray, out.keep) - 1, 1):
        _number(out, "most steps are there several times with different losses: the points are numbered in the order of the file")
    return out


def _turn(out: Stretches, loss: Float[np.ndarray, " row"]) -> None:
    """Steps that only fall: the newest stand first, or, where the loss falls with them, they count what is left."""
    if _typical(loss[-LOOKED_AT:][-len(loss) // 2:]) < _typical(loss[:LOOKED_AT][:len(loss) // 2]):
        _number(out, "the steps fall while the loss does: the points are numbered in the order of the file")
    else:
        out.notes.append("the newest steps stand first in this file: it was read from its end")


def _places(n: int) -> Steps:
    out = empty(n, np.int64)
    for piece in pieces(n):
        out[piece] = np.arange(piece.start, piece.stop)
        let_go(out[piece])
    return out


def _repeats(out: Stretches) -> int:
    """How many rows have the step of the one before them in their session."""
    whole = every(np.asarray, out.keep)
    steps, session = (out.steps, out.session) if whole else (chosen(out.keep, out.steps), chosen(out.keep, out.session))
    return count(lambda a, b, c, d: (a == b) & (c == d), steps[1:], steps[:-1], session[1:], session[:-1])


def _stride(steps: Steps) -> int:
    rises = np.diff(steps[:LOOKED_AT])
    rises = rises[rises > 0]
    return int(np.median(rises)) if len(rises) else 1


def _restarts(out: Stretches, kept: _Kept, epochs: Float[np.ndarray, " row"] | None, reached: Steps | None) -> None:
    """Cut where steps fall: into runs where they start over, into sessions where they go back a little."""
    steps, values = kept.steps, kept.loss
    if reached is None:
        cuts = where(np.less, steps[1:], steps[:-1]) + 1
    else:
        highest = reached if kept.place is None else chosen(out.keep, reached)
        cuts = where(lambda now, before, most: (now <= before) & (now < np.maximum(most, before)), steps[1:], steps[:-1], highest[1:]) + 1
    begins = steps[0] + 2 * _stride(steps)
    anew = np.array([int(cut) for cut in cuts if steps[cut] <= begins or _starts_over(steps, values, int(cut))], dtype=np.int64)
    back = np.setdiff1d(cuts, anew)
    change = None if epochs is None else epochs[kept.at(anew)] - epochs[kept.at(anew - 1)]
    if len(anew) and _alike(steps, anew) and _count_anew(anew, values, change):
        _count_on(out, kept.at(anew), kept.at(back))
        return
    out.run = _numbered(len(out.keep), kept.at(anew))
    out.session = _numbered(len(out.keep), kept.at(cuts))
    if len(anew):
        out.notes.append(f"the steps start over {len(anew)} times: {len(anew) + 1} runs were told apart")


def _alike(steps: Steps, anew: Int[np.ndarray, " cut"]) -> bool:
    """Whether what starts over has one length, as epochs have; the last one may be cut."""
    ends = np.array([extremes(steps[a:b])[1] for a, b in _between(anew, len(steps))]) - extremes(steps)[0]
    most, stride = int(ends[:-1].max()), _stride(steps)
    return bool(ends[-1] <= LONGER * most + stride and np.median(ends[:-1]) * LONGER + stride >= most)


def _between(cuts: Int[np.ndarray, " cut"], n: int) -> Iterator[tuple[int, int]]:
    ends = [0, *cuts.tolist(), n]
    return zip(ends[:-1], ends[1:], strict=True)


def _numbered(n: int, cuts: Int[np.ndarray, " cut"]) -> Steps:
    """The number of cuts up to each row."""
    out = empty(n, np.int64)
    for number, (begin, end) in enumerate(_between(cuts, n)):
        for (some,) in together(out[begin:end]):
            some[:] = number
    return out


def _typical(values: Float[np.ndarray, " row"]) -> float:
    finite = values[np.isfinite(values) & (values > 0)]
    return float(np.log(np.median(finite))) if len(finite) else float("nan")


def _starts_over(steps: Steps, loss: Float[np.ndarray, " row"], cut: int) -> bool:
    """Whether the loss at a fall of the steps is that of a fresh model, and not what it was at this step before."""
    before = _first(steps[:cut], int(steps[cut]))
    fresh, old, new = _typical(loss[:2]), _typical(loss[max(before - 2, 0):before + 3]), _typical(loss[cut:cut + 2])
    return abs(new - fresh) < abs(new - old) and abs(fresh - old) > 0.5


def _first(steps: Steps, least: int) -> int:
    """The place of the first step that is not below another."""
    for piece in pieces(len(steps)):
        if (found := steps[piece] >= least).any():
            return int(piece.start + found.argmax())
        let_go(steps[piece])
    return len(steps)


def _count_anew(anew: Int[np.ndarray, " cut"], loss: Float[np.ndarray, " row"], change: Float[np.ndarray, " cut"] | None) -> bool:
    """Whether the steps start over with each epoch of one run, not with another run; change: of the epoch where they do."""
    if change is not None:
        if (change > 0).mean() > 0.5:
            return True
        if (change <= 0).mean() > 0.5:
            return False
    fresh = _typical(loss[:2])
    goes_on = []
    for cut in anew.tolist():
        new, end = _typical(loss[cut:cut + 2]), _typical(loss[max(cut - 5, 0):cut])
        goes_on.append(abs(new - end) < abs(new - fresh))
    return bool(np.mean(goes_on) > 0.5)


def _count_on(out: Stretches, anew: Int[np.ndarray, " cut"], back: Int[np.ndarray, " back"]) -> None:
    """Number the steps through: each epoch goes on where the one before it ended."""
    n, stride, shift = len(out.steps), _stride(chosen(out.keep, out.steps)), 0
    shifts, steps = empty(n, np.int64), empty(n, np.int64)
    for begin, end in _between(anew, n):
        for there, made, old in together(shifts[begin:end], steps[begin:end], out.steps[begin:end]):
            there[:] = shift
            made[:] = old + shift
        least, most = extremes(chosen(out.keep[begin:end], out.steps[begin:end]))
        shift += most + (0 if least > 0 else stride)
    out.shift, out.steps = shifts, steps
    out.session = _numbered(n, back)
    out.notes.append(f"the steps start over {len(anew)} times with the loss going on: they were numbered through as epochs of one run")


def _number(out: Stretches, why: str) -> None:
    place, at = empty(len(out.steps), np.int64), -1
    for made, keep in together(place, out.keep):
        made[:] = at + np.cumsum(keep)
        at = int(made[-1])
    out.shift = each(lambda shift, now, before: shift + now - before, out.shift, place, out.steps, dtype=np.int64)
    out.steps = place
    out.notes.append(why)
