"""Tells writers apart that interleave in one file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from stabilitylens.readers._large import count, empty, extremes, together
from stabilitylens.readers._lockstep import in_turn

#: steps that fall on this share of rows are those of interleaved writers; several writers can be told apart up to 64
FALLING, WRITERS = 0.05, 64
#: a writer with fewer rows than this share of the longest one's is the echo of another. *Heuristic*.
ECHO = 0.1


@dataclass(frozen=True)
class Writers:
    """Which rows count, the number of each row's writer, and a sentence on what was found."""

    keep: Bool[np.ndarray, " row"]
    number: Int[np.ndarray, " row"]
    notes: list[str]


def interleaved(keep: Bool[np.ndarray, " row"], steps: Int[np.ndarray, " kept"], loss: Float[np.ndarray, " kept"], stride: int) -> Writers | None:
    """The writers that interleave; None where none do.

    Args:
        keep: which rows count.
        steps: of those.
        loss: of those.
        stride: how far apart they are, as a rule.
    """
    falls = count(np.less, steps[1:], steps[:-1])
    if not falls:
        turns = in_turn(steps, loss)
        return None if turns is None else _told_apart(keep, turns)
    if falls < FALLING * (len(steps) - 1):
        return None
    begin = extremes(steps)[0] + 2 * stride
    if count(lambda now, before: (now < before) & (now <= begin), steps[1:], steps[:-1]) > 0.5 * falls:
        return None
    return _told_apart(keep, _writers(steps))


def _told_apart(keep: Bool[np.ndarray, " row"], writer: Int[np.ndarray, " kept"]) -> Writers:
    counts = np.sum([np.bincount(some, minlength=WRITERS) for (some,) in together(writer)], axis=0)
    real = counts >= max(ECHO * counts.max(), 1)
    notes = []
    if echoes := int(counts[~real].sum()):
        notes.append(f"{echoes} rows repeat steps of another writer and were left out")
    if real.sum() > 1:
        notes.append(f"{real.sum()} writers interleave in this file; each is a run of its own")
    return Writers(*_given_out(keep, writer, np.where(real, np.cumsum(real) - 1, -1)), notes)


def _given_out(counted: Bool[np.ndarray, " row"], writer: Int[np.ndarray, " kept"], numbers: Int[np.ndarray, " writer"]) -> tuple[np.ndarray, np.ndarray]:
    """Which rows count, and the number of each row's writer, below 0 for an echo; others go with the row before them."""
    keep, run, at = empty(len(counted), bool), empty(len(counted), np.int64), 0
    before = next(int(some[0]) for (part,) in together(writer) if len(some := numbers[part][numbers[part] >= 0]))
    for here, now, mine in together(counted, keep, run):
        mine[:] = -1
        mine[here] = numbers[writer[at:at + np.count_nonzero(here)]]
        at += int(np.count_nonzero(here))
        now[:] = mine >= 0
        last = np.maximum.accumulate(np.where(now, np.arange(1, len(now) + 1), 0))
        mine[:] = np.append(before, mine)[last]
        before = int(mine[-1])
    return keep, run


def _writers(steps: Int[np.ndarray, " kept"]) -> Int[np.ndarray, " kept"]:
    """Each row goes to the writer whose last step is next below its own, or to a new one."""
    last: list[int] = []
    out = empty(len(steps), np.int64)
    for made, some in together(out, steps):
        for i, step in enumerate(some.tolist()):
            below = [(value, -k) for k, value in enumerate(last) if value < step]
            if below:
                k = -max(below)[1]
            elif len(last) < WRITERS:
                k = len(last)
                last.append(step)
            else:
                k = min(range(len(last)), key=last.__getitem__)
            last[k], made[i] = step, k
    return out
