"""The upper tail of a run's own noise: how many points as high as one it would have by itself.

Hill's estimator (Hill 1975, https://doi.org/10.1214/aos/1176343247) of the largest of the single points. It takes the
tail for a power law, which is too heavy for Gaussian noise, and so calls too little out of the ordinary, never too much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

#: the tail is this share of the points, at least and at most so many. *Heuristic*: twenty points give its index to a
#: fifth; further in, heavy tails are still bent.
SHARE, LEAST, MOST = 0.02, 8, 50


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
    return Tail(float(highest[0]), points, max(float(np.mean(np.log(highest[1:] / highest[0]))), 1e-3))
