"""Finds rows that one file holds twice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float, Int

from stabilitylens.readers._large import count, empty, extremes, let_go, pieces

#: two rows with one step and one loss are one row written twice, if at most so many rows apart. *Heuristic*.
NEAR = 64
#: rows that repeat a step are echoes where at least this share repeats the loss too. *Heuristic*.
AGREE = 0.8
#: echoes come row by row: the steps do not rise at this share of them at least. *Heuristic*.
FALLS = 0.3
Steps = Int[np.ndarray, " row"]


def without_twins(steps: Steps, loss: Float[np.ndarray, " row"], reached: Steps | None) -> Bool[np.ndarray, " row"] | None:
    """The rows that are not written twice; None where none are.

    Args:
        steps: of each row.
        loss: of each row.
        reached: the highest step that any row has had since the loss's row before, that one included.
    """
    found = repeats = 0
    for _, twins, repeated in _twins(steps, loss, reached):
        found, repeats = found + len(twins), repeats + repeated
    # two writers of one run agree here and there; a resume repeats a stretch in order, with one fall of the steps
    if found <= AGREE * repeats or count(np.less_equal, steps[1:], steps[:-1]) <= FALLS * found:
        return None
    keep = empty(len(loss), bool)
    for piece, twins, _ in _twins(steps, loss, reached):
        keep[piece] = True
        keep[twins] = False
    return keep


def _twins(steps: Steps, loss: Float[np.ndarray, " row"], reached: Steps | None) -> Iterator[tuple[slice, Steps, int]]:
    """Piece by piece: the rows that repeat step and loss of one that is near, and how many repeat the step."""
    least, highest = extremes(steps)[0], int(steps[0])
    for piece in pieces(len(steps)):
        near = slice(max(piece.start - NEAR, 0), piece.stop)
        here, values = steps[near], loss[near]
        order = np.argsort(here, kind="stable")
        a, b = order[:-1], order[1:]
        new = (here[a] == here[b]) & (b - a <= NEAR) & (b + near.start >= piece.start)
        a, b = a[new], b[new]
        # a first step that comes back later begins another run, which may well begin with the same loss
        begins = (here == least) & (here < np.maximum(np.maximum.accumulate(here), highest))
        a, b = a[~begins[b]], b[~begins[b]]
        same = (values[a] == values[b]) | (np.isnan(values[a]) & np.isnan(values[b]))
        twins = b[same & (reached[near][b] <= here[b])] if reached is not None else b[same]
        highest = max(highest, int(here.max()))
        yield piece, twins + near.start, len(b)
        let_go(here, values, *(() if reached is None else (reached[near],)))
