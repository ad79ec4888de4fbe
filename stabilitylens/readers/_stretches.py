"""Tells apart what one file holds: runs after each other, writers that interleave, resumes, epochs that count anew."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

#: two rows with one step and one loss are one row written twice, if at most so many rows apart. *Heuristic*.
NEAR = 64
#: steps that fall on this share of rows are those of interleaved writers; several writers can be told apart up to 64
FALLING, WRITERS = 0.05, 64
#: rows that repeat a step are echoes where at least this share repeats the loss too. *Heuristic*.
AGREE = 0.8
#: a writer with fewer rows than this share of the longest one's is the echo of another. *Heuristic*.
ECHO = 0.1
#: an epoch is at most so much longer than another of its run. *Heuristic*.
LONGER = 1.1
#: steps that are repeated on this share of rows number no rows. *Heuristic*.
REPEATED = 0.3

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
    zeros = np.zeros(len(steps), dtype=np.int64)
    if (steps[1:] > steps[:-1]).all():
        return Stretches(np.ones(len(steps), dtype=bool), steps, zeros, zeros, zeros)
    out = Stretches(np.ones(len(steps), dtype=bool), steps.copy(), zeros, zeros.copy(), zeros.copy())
    _drop_twins(out, loss, reached)
    if _interleave(out):
        return out
    _restarts(out, loss, epochs, reached)
    if _mean((np.diff(out.steps[out.keep]) == 0) & (np.diff(out.session[out.keep]) == 0)) >= REPEATED:
        _number(out)
    return out


def _mean(found: Bool[np.ndarray, " row"]) -> float:
    return float(found.mean()) if len(found) else 0.0


def _drop_twins(out: Stretches, loss: Float[np.ndarray, " row"], reached: Steps | None) -> None:
    order = np.argsort(out.steps, kind="stable")
    a, b = order[:-1], order[1:]
    same = (loss[a] == loss[b]) | (np.isnan(loss[a]) & np.isnan(loss[b]))
    # a first step that comes back later begins another run, which may well begin with the same loss
    begins = (out.steps == out.steps.min()) & (out.steps < np.maximum.accumulate(out.steps))
    repeats = (out.steps[a] == out.steps[b]) & (b - a <= NEAR) & ~begins[b]
    twins = b[repeats & same & (reached[b] <= out.steps[b])] if reached is not None else b[repeats & same]
    # two writers of one run agree here and there; a resume repeats a stretch in order, with one fall of the steps
    if len(twins) > AGREE * repeats.sum() and np.sum(np.diff(out.steps) <= 0) > REPEATED * len(twins):
        out.keep[twins] = False
        out.notes.append(f"{len(twins)} rows repeat the step and loss of another and were left out")


def _interleave(out: Stretches) -> bool:
    """Whether several writers interleave; each becomes a run."""
    where = np.flatnonzero(out.keep)
    steps = out.steps[where]
    change = np.diff(steps)
    falls = change < 0
    back = steps[1:][falls] <= steps.min() + 2 * _stride(steps)
    if _mean(falls) < FALLING or _mean(back) > 0.5:
        return False
    writer = _writers(steps)
    counts = np.bincount(writer)
    echoes = counts[writer] < ECHO * counts.max()
    out.keep[where[echoes]] = False
    _, number = np.unique(writer[~echoes], return_inverse=True)
    # rows that do not count go with the writer of the row before them
    place = np.clip(np.cumsum(out.keep) - 1, 0, None)
    out.run, out.session = number[place], number[place].copy()
    if echoes.any():
        out.notes.append(f"{int(echoes.sum())} rows repeat steps of another writer and were left out")
    if number.max() > 0:
        out.notes.append(f"{number.max() + 1} writers interleave in this file; each is a run of its own")
    return True


def _writers(steps: Steps) -> Steps:
    """Each row goes to the writer whose last step is next below its own, or to a new one."""
    last: list[int] = []
    out = np.empty(len(steps), dtype=np.int64)
    for i, step in enumerate(steps.tolist()):
        below = [(value, -k) for k, value in enumerate(last) if value < step]
        if below:
            k = -max(below)[1]
        elif len(last) < WRITERS:
            k = len(last)
            last.append(step)
        else:
            k = min(range(len(last)), key=last.__getitem__)
        last[k], out[i] = step, k
    return out


def _stride(steps: Steps) -> int:
    rises = np.diff(steps)
    rises = rises[rises > 0]
    return int(np.median(rises)) if len(rises) else 1


def _restarts(
    out: Stretches, loss: Float[np.ndarray, " row"], epochs: Float[np.ndarray, " row"] | None, reached: Steps | None
) -> None:
    """Cut where steps fall: into runs where they start over, into sessions where they go back a little."""
    where = np.flatnonzero(out.keep)
    steps, values = out.steps[where], loss[where]
    highest = steps[:-1] if reached is None else np.maximum(reached[where][1:], steps[:-1])
    cuts = np.flatnonzero((np.diff(steps) <= 0) & (steps[1:] < highest)) + 1
    begins = steps[0] + 2 * _stride(steps)
    anew = np.array([int(cut) for cut in cuts if steps[cut] <= begins or _starts_over(steps, values, int(cut))], dtype=np.int64)
    back = np.setdiff1d(cuts, anew)
    if len(anew) and _alike(steps, anew) and _count_anew(anew, values, epochs[where] if epochs is not None else None):
        _count_on(out, where[anew], where[back])
        return
    out.run = _numbered(len(loss), where[anew])
    out.session = _numbered(len(loss), where[cuts])
    if len(anew):
        out.notes.append(f"the steps start over {len(anew)} times: {len(anew) + 1} runs were told apart")


def _alike(steps: Steps, anew: Int[np.ndarray, " cut"]) -> bool:
    """Whether what starts over has one length, as epochs have; the last one may be cut."""
    ends = np.array([int(part.max()) for part in np.split(steps, anew)]) - int(steps.min())
    most, stride = int(ends[:-1].max()), _stride(steps)
    return bool(ends[-1] <= LONGER * most + stride and np.median(ends[:-1]) * LONGER + stride >= most)


def _numbered(n: int, cuts: Int[np.ndarray, " cut"]) -> Steps:
    marks = np.zeros(n, dtype=np.int64)
    marks[cuts] = 1
    return np.cumsum(marks)


def _typical(values: Float[np.ndarray, " row"]) -> float:
    finite = values[np.isfinite(values) & (values > 0)]
    return float(np.log(np.median(finite))) if len(finite) else float("nan")


def _starts_over(steps: Steps, loss: Float[np.ndarray, " row"], cut: int) -> bool:
    """Whether the loss at a fall of the steps is that of a fresh model, and not what it was at this step before."""
    before = int(np.searchsorted(np.maximum.accumulate(steps[:cut]), steps[cut]))
    fresh, old, new = _typical(loss[:2]), _typical(loss[max(before - 2, 0):before + 3]), _typical(loss[cut:cut + 2])
    return abs(new - fresh) < abs(new - old) and abs(fresh - old) > 0.5


def _count_anew(anew: Int[np.ndarray, " cut"], loss: Float[np.ndarray, " row"], epochs: np.ndarray | None) -> bool:
    """Whether the steps start over with each epoch of one run, not with another run."""
    if epochs is not None:
        change = epochs[anew] - epochs[anew - 1]
        if _mean(change > 0) > 0.5:
            return True
        if _mean(change <= 0) > 0.5:
            return False
    fresh = _typical(loss[:2])
    goes_on = []
    for cut in anew.tolist():
        new, end = _typical(loss[cut:cut + 2]), _typical(loss[max(cut - 5, 0):cut])
        goes_on.append(abs(new - end) < abs(new - fresh))
    return _mean(np.array(goes_on)) > 0.5


def _count_on(out: Stretches, anew: Int[np.ndarray, " cut"], back: Int[np.ndarray, " back"]) -> None:
    """Number the steps through: each epoch goes on where the one before it ended."""
    stride = _stride(out.steps[out.keep])
    ends = [0, *anew.tolist(), len(out.steps)]
    shift = 0
    for begin, end in zip(ends[:-1], ends[1:], strict=True):
        out.shift[begin:end] = shift
        kept = out.steps[begin:end][out.keep[begin:end]]
        shift += int(kept.max()) + (0 if kept.min() > 0 else stride)
    out.steps = out.steps + out.shift
    out.session = _numbered(len(out.steps), back)
    out.notes.append(f"the steps start over {len(anew)} times with the loss going on: they were numbered through as epochs of one run")


def _number(out: Stretches) -> None:
    place = np.cumsum(out.keep) - 1
    out.shift = out.shift + place - out.steps
    out.steps = place
    out.notes.append("most steps are there several times with different losses: the points are numbered in the order of the file")
