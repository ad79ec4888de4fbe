"""A rise at once to a level that the curve keeps: a level shift, where a divergence goes on rising or never settles."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import uniform_filter1d

from stabilitylens.incidents._curve import Points
from stabilitylens.incidents._rises import Rise

#: points that the level before and after is taken over. *Heuristic*: their median has half the noise of a point.
BESIDE = 9
#: a curve is settled if it rises later by no more than this share of the jump, *heuristic*,
LATER = 0.25
#: and if its means over so many points never rise again by more than this share of it. *Heuristic*.
SMOOTH, ASTRAY = 17, 0.5
#: and if it keeps this share of the jump; what comes down by more has spiked, and has not recovered. *Heuristic*.
KEPT = 0.4
#: what jumps by this factor, and by this share of all that was learnt, is no shift: the training is lost. *Heuristic*.
LOST, LEARNT = float(np.log(1.5)), 0.8


def jump(z: Points, up: Rise) -> float:
    """By how much a curve rises at once where a lasting rise begins."""
    before, after = z[max(0, up.start - BESIDE) : up.start], z[up.start : up.start + BESIDE]
    return float(np.median(after) - np.median(before)) if len(before) else 0.0


def settles(z: Points, up: Rise, height: float) -> bool:
    """Whether a curve that rose at once goes on no higher; few points cannot say."""
    after = z[up.start :]
    if not up.abrupt or len(after) < 3 * BESIDE or height < up.height * (1 - LATER):
        return False
    level = float(np.median(after[:BESIDE]))
    thirds = [float(np.median(third)) for third in np.array_split(after, 3)]
    means = uniform_filter1d(after, SMOOTH)
    again = float(np.max(means - np.minimum.accumulate(means)))
    return max(thirds) <= level + LATER * height and again <= ASTRAY * height


def is_shift(z: Points, up: Rise, height: float) -> bool:
    """Whether a curve that rose at once and settled keeps the new level, and has not lost all that it had learnt."""
    learnt = float(np.median(z[:BESIDE])) - up.base
    lost = height >= max(LOST, LEARNT * learnt)
    return not lost and up.height >= KEPT * height
