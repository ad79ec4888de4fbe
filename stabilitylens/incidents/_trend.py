"""The descent of a curve: what training is expected to do, taken off before anything is looked for.

Levels of bins that grow with the position, made never to rise, are joined by straight lines over the logarithm
of the position. Where the level falls far more between two bins than beside them, there is a step (a schedule, an
epoch), and the descent steps with it: a line would cut the corner, and what comes before a step would look high.
"""

from __future__ import annotations

import numpy as np

from stabilitylens.incidents._curve import SCALE_FLOOR, Points

#: points of the first bins, and the share of the position that later ones span. *Heuristic*: a power law with
#: exponent 1/2 bends by 0.1 % within such a bin.
BIN, SHARE = 8, 1 / 6
#: a bin's level: below the middle, so that a spike may fill half of it. *Heuristic*.
QUANTILE = 0.35
#: a step falls this many times as far as its neighbours do. *Heuristic*.
STEEPER = 3.0


def _spans(n: int) -> list[tuple[int, int]]:
    edges = [0]
    while n - edges[-1] >= 2 * BIN:
        edges.append(min(n, edges[-1] + max(BIN, int(edges[-1] * SHARE))))
    edges = edges if edges[-1] == n else [*edges[:-1], n] if n - edges[-1] < BIN else [*edges, n]
    return list(zip(edges[:-1], edges[1:], strict=True))


def _steps(drops: Points) -> list[int]:
    """After which bins the descent steps."""
    beside = np.maximum(np.append(drops[1:], 0.0), np.insert(drops[:-1], 0, 0.0))
    return [int(i) for i in np.flatnonzero(drops > STEEPER * beside + SCALE_FLOOR)]


def split(z: Points, before: float, after: float) -> int:
    """How many of these points belong to the first of two levels that a curve steps between."""
    costs = np.abs(z - before) - np.abs(z - after)
    return int(np.argmin(np.insert(np.cumsum(costs), 0, 0.0)))


def _straightened(levels: Points, at: Points, steps: list[int]) -> Points:
    """Levels that stand above the line between their neighbours put down on it: an excursion fills that bin."""
    if len(levels) < 3:
        return levels
    share = (at[1:-1] - at[:-2]) / (at[2:] - at[:-2])
    chord = levels[:-2] + share * (levels[2:] - levels[:-2])
    bent = [i for i in range(1, len(levels) - 1) if not {i - 1, i} & set(steps)]
    lowered = levels.copy()
    lowered[bent] = np.minimum(levels, np.concatenate([levels[:1], chord, levels[-1:]]))[bent]
    return np.asarray(np.minimum.accumulate(lowered))


def descent(z: Points) -> Points:
    """The trend of a curve at each point; it never rises."""
    if len(z) < 2 * BIN:
        return np.zeros(len(z))
    spans = _spans(len(z))
    levels = np.minimum.accumulate([float(np.quantile(z[first:last], QUANTILE)) for first, last in spans])
    centres = [(first + last) // 2 for first, last in spans]
    steps, at = _steps(-np.diff(levels)), np.log(np.add(centres, 1.0))
    levels = _straightened(levels, at, steps)
    trend = np.interp(np.log(np.arange(1.0, len(z) + 1)), at, levels)
    for i in steps:
        first, last = centres[i], centres[i + 1]
        edge = first + split(z[first:last], levels[i], levels[i + 1])
        trend[first:edge], trend[edge:last] = levels[i], levels[i + 1]
    return np.asarray(trend)
