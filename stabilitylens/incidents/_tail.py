"""The upper tail of a run's own noise: how many points as high as one it would have by itself.

Hill's estimator of the largest of the single points, trimmed: the very highest may be bad batches, and one of them would
make its own height likely (Bhattacharya, Kallitsis and Stoev 2019, https://arxiv.org/abs/1808.07704). It takes the
tail for a power law, which is too heavy for Gaussian noise, and so calls too little out of the ordinary, never too much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

#: the tail is this share of the points, at least and at most so many. *Heuristic*: twenty points give its index to a
#: fifth; further in, heavy tails are still bent.
SHARE, LEAST, MOST = 0.02, 8, 50
#: this share of the tail, the highest of it, may be no noise. *Heuristic*.
TRIMMED = 0.25


@dataclass(frozen=True)
class Tail:
    """So many points lie above a level, and thin out as its power of minus one over the index."""

    level: float
    points: int
    index: float

    def as_high(self, sigma: float) -> float:
        """How many points at least this high the noise is expected to have in a run of this length."""
        return float(self.points * (max(sigma, self.level) / self.level) ** (-1 / self.index))


def tail(alone: Float[np.ndarray, " alone"]) -> Tail | None:
    """The tail of the single points, in sigma; None where there are too few of them above zero to have one."""
    points = int(np.clip(SHARE * len(alone), LEAST, MOST))
    if len(alone) <= points:
        return None
    highest = np.sort(alone)[-points - 1 :]
    if highest[0] <= 0:
        return None
    above = np.log(highest[1:] / highest[0])
    kept = points - int(TRIMMED * points)
    index = (float(np.sum(above[:kept])) + (points - kept) * float(above[kept - 1])) / kept
    return Tail(float(highest[0]), points, max(index, 1e-3))
