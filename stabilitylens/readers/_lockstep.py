"""Tells writers apart that log the same steps in turn, by the levels and the course of their losses."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.readers._large import where

#: so many rows a step are those of several writers, if so many steps have exactly as many. *Heuristic*.
MOST, ALIKE = 8, 0.95
#: fewer steps tell nothing. *Heuristic*.
FEW = 20
#: writers in turn differ where their mean distance is this many spreads of it, or where it goes on from step to step. *Heuristic*.
APART, GOES_ON = 1.0, 0.5
#: writers in no order are told apart by level alone, with this many spreads between: sorted noise has 1.3. *Heuristic*.
FAR = 3.0
Losses = Float[np.ndarray, "step writer"]


def in_turn(steps: Int[np.ndarray, " row"], loss: Float[np.ndarray, " row"]) -> Int[np.ndarray, " row"] | None:
    """The number of each row's writer; None where the rows of a step are not those of several writers.

    Gradient accumulation and data-parallel ranks also log a step several times: their losses differ by noise alone.

    Args:
        steps: never falling.
        loss: of the same rows.
    """
    begins = np.append(0, where(np.not_equal, steps[1:], steps[:-1]) + 1)
    sizes = np.diff(np.append(begins, len(steps)))
    writers = int(np.median(sizes))
    whole = begins[sizes == writers]
    if not 1 < writers <= MOST or len(whole) < max(FEW, ALIKE * len(begins)):
        return None
    rows = whole[:, None] + np.arange(writers)
    losses = loss[rows]
    if _goes_down(losses):
        return None
    if _differ(_centred(np.sort(losses, axis=1)), FAR, np.inf):
        rank = np.argsort(np.argsort(losses, axis=1), axis=1)
        number = np.argsort(rank[0])[rank]
    elif _differ(_centred(losses), APART, GOES_ON):
        number = np.broadcast_to(np.arange(writers), losses.shape)
    else:
        return None
    out = np.full(len(steps), -1, dtype=np.int64)
    out[rows] = number
    return _by_level(out, loss, writers)


def _centred(losses: Losses) -> Losses:
    """Each writer's distance from the mean of its step, in logarithms where all are positive; steps that are not finite left out."""
    finite = losses[np.isfinite(losses).all(axis=1)]
    scaled = np.log(finite) if len(finite) and finite.min() > 0 else finite
    centred: Losses = scaled - scaled.mean(axis=1, keepdims=True)
    return centred


def _differ(distances: Losses, apart: float, goes_on: float) -> bool:
    if len(distances) < FEW:
        return False
    level = distances.mean(axis=0)
    rest = distances - level
    spread = float(np.sqrt(np.mean(rest**2)))
    if np.sqrt(np.mean(level**2)) > apart * spread:
        return True
    return bool(np.mean(rest[1:] * rest[:-1]) > goes_on * spread**2)


def _goes_down(losses: Losses) -> bool:
    """Whether a step begins where the one before it went to, as where one run falls all the while; a writer would begin higher again."""
    within, between = np.median(losses[:, -1] - losses[:, 0]), np.median(losses[1:, 0] - losses[:-1, -1])
    return bool(within * between > 0)


def _by_level(numbers: Int[np.ndarray, " row"], loss: Float[np.ndarray, " row"], writers: int) -> Int[np.ndarray, " row"]:
    """Rows of steps that lack a writer, or have a row more, go to the writer whose loss was nearest before."""
    for row in np.flatnonzero(numbers < 0).tolist():
        before = [loss[:row][numbers[:row] == writer][-1:] for writer in range(writers)]
        far = [abs(float(some[0] - loss[row])) if len(some) else np.inf for some in before]
        numbers[row] = int(np.argmin(far))
    return numbers
