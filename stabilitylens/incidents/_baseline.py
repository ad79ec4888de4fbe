"""Where a curve was expected to be, and how far it usually strays from there.

The expectation at a point leaves the point and its surroundings out. It is the higher of two: the past
carried on along its own downward trend, and the chord from the past to the future. The first alone fails
where a decay flattens, the second alone just before a drop; an upward trend is never carried on, or a
rise would hide itself. Trends are taken over the logarithm of the position, where power laws are straight.
"""

from __future__ import annotations

import math
from statistics import median

import numpy as np
from scipy.ndimage import median_filter, percentile_filter

from stabilitylens.incidents._curve import SCALE_FLOOR, Points

#: points of the shortest window that a level is taken over. *Heuristic*: its median has a quarter of the noise.
WINDOW = 21
#: the scale is taken over this many points. *Heuristic*: short enough to follow a schedule.
SCALE_WINDOW = 301
#: the upper quartile of a Gaussian, in standard deviations
UPPER_QUARTILE = 0.6745


def _shifted(levels: Points, by: int) -> Points:
    """``levels[t + by]``, NaN where that is outside."""
    out = np.full(len(levels), np.nan)
    if abs(by) < len(levels):
        if by < 0:
            out[-by:] = levels[:by]
        else:
            out[: len(levels) - by] = levels[by:]
    return out


def _levels(z: Points, window: int) -> Points:
    """Running median over ``window`` points; NaN where the window is not full."""
    levels: Points = median_filter(z, size=window, mode="nearest")
    half = window // 2
    levels[:half] = np.nan
    levels[len(levels) - half :] = np.nan
    return levels


def _carried(near: Points, far: Points, at: Points, at_near: Points, at_far: Points) -> Points:
    """The past level carried on to ``at`` along its own trend, if that is downward."""
    slope = np.minimum(near - far, 0.0) / np.log(at_near / at_far)
    return np.asarray(near + np.nan_to_num(slope) * np.log(at / at_near))


def _short(z: list[float], t: int, gap: int) -> tuple[float, float, float]:
    """Past level, past trend and chord near the ends of a curve, from the points there are."""
    first, stop = max(0, t - gap + 1 - 2 * WINDOW), max(0, t - gap + 1)
    past, future = z[first:stop], z[t + gap : t + gap + WINDOW]
    if not past:
        return math.nan, math.nan, math.nan
    half = len(past) // 2
    near, middle = median(past[half:]), first + (half + len(past) + 1) / 2
    before, behind = t + 1 - middle, gap + (len(future) - 1) / 2
    chord = near + (median(future) - near) * before / (before + behind) if future else math.nan
    if half < 2:
        return near, near, chord
    slope = min(near - median(past[:half]), 0.0) / math.log(middle / (first + (half + 1) / 2))
    return near, near + slope * math.log((t + 1) / middle), chord


def expected(z: Points, width: int) -> Points:
    """The level expected at each point, for excursions of up to ``width`` points.

    Returns:
        NaN where there is no past to expect anything from.
    """
    gap, window = width // 2 + 1, max(WINDOW, width | 1)
    levels, half = _levels(z, window), window // 2
    near, far = _shifted(levels, -gap - half), _shifted(levels, -gap - half - window)
    after = _shifted(levels, gap + half)
    at = np.arange(1.0, len(z) + 1)
    at_near, at_far = np.maximum(at - gap - half, 1.0), np.maximum(at - gap - half - window, 0.5)
    trend = np.where(np.isnan(far), near, _carried(near, far, at, at_near, at_far))
    chord = (near + after) / 2
    if window == WINDOW:
        points = z.tolist()
        for t in {*range(min(gap + 2 * window, len(z))), *range(max(0, len(z) - gap - window), len(z))}:
            near[t], trend[t], chord[t] = _short(points, t, gap)
    level = np.fmax(np.where(np.isnan(chord), near, trend), np.fmin(chord, near))
    return np.asarray(np.where(np.isnan(level), np.nan, np.maximum(level, 0.0)))


def scale(residual: Points, window: int = SCALE_WINDOW) -> Points:
    """Robust standard deviation around each point, from the upper half of what surrounds it.

    It is the distance from the median to the upper quartile, as a Gaussian has it at 0.6745 sigma. The
    lower half is left out: where an excursion is part of the past, its neighbours seem far too low.
    The floor is ``SCALE_FLOOR`` of the level, and half of what the whole curve has.
    """
    known = np.isfinite(residual)
    if not known.any():
        return np.full(len(residual), SCALE_FLOOR)
    middle, upper = np.quantile(residual[known], (0.5, 0.75))
    filled = np.where(known, residual, middle)
    size = min(window, len(residual))
    local = percentile_filter(filled, 75, size=size, mode="reflect") - median_filter(filled, size=size, mode="reflect")
    return np.asarray(np.maximum(local / UPPER_QUARTILE, max(SCALE_FLOOR, (upper - middle) / UPPER_QUARTILE / 2)))
