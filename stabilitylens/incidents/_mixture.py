"""Batches from two sources of data: two levels that take turns at random all through a run are one level.

The levels are running medians of the points nearer to either, found by turns from the running extremes. They are
believed where next to nothing lies between them and the turns are as many as chance makes them: a spike, a shift
or a period leaves and comes back too seldom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool
from scipy.ndimage import median_filter, percentile_filter

from stabilitylens.incidents._curve import SCALE_FLOOR, Points

#: points that the extremes are taken over, and those of one source that its level is. *Heuristic*: a source of every
#: tenth batch has too few in one window of a hundred.
EXTREMES, LEVEL = 101, 21
#: the level of the rarer source is taken over so many points of it at least. *Heuristic*: early in a run sources come
#: down at rates of their own.
NEAR = 7
#: how far apart the levels are is smoothed over so many points: where one source is missing, the other is no two.
#: *Heuristic*.
APART = 101
#: percent of the windows around in which the extremes are nearer at first: the others had both sources. *Heuristic*.
MOSTLY = 75
#: they are nowhere nearer than this share of what is usual. *Heuristic*: early losses are high, and ratios small.
NEARER = 0.4
#: the least distance, in the least noise that is believed: rounded values have levels too. *Heuristic*.
LEAST = 4 * SCALE_FLOOR
#: percent that lie outside the extremes: three outliers in a hundred points are none
OUTSIDE = 3
#: rounds of parting the points and taking their levels. *Heuristic*: parts settle after two.
ROUNDS = 4
#: the rarer source has this share of all points, and so many. *Heuristic*: what is rarer is told by its single points.
RAREST, FEWEST = 0.03, 20
#: share of the points in the middle of the way from one level to the other, by where it begins and ends. Healthy
#: public logs have 7 % and more there, sources 5 standard deviations apart have 2 %. *Heuristic*.
MIDDLE, BETWEEN = (0.35, 0.65), 0.05
#: the turns are this share of those that chance makes. *Heuristic*: 60 draws have fewer once in a thousand runs.
TURNS = 0.6
#: sources that are looked for one after the other
SOURCES = 3
#: a longer curve is first looked at in so many samples, of this length together. *Heuristic*: it takes a second less.
LONG, SAMPLES = 50_000, 5
#: a run of points from one source that chance makes in this share of curves is an event. *Heuristic*.
CHANCE = 0.01


@dataclass(frozen=True)
class _Parted:
    """Which points belong to the higher level, how far apart the levels are, and the share of points in between."""

    high: Bool[np.ndarray, " point"]
    apart: Points
    between: float


def _level(z: Points, members: Bool[np.ndarray, " point"], points: int = LEVEL) -> Points:
    """The running median of some points, at every point."""
    at = np.flatnonzero(members)
    levels = median_filter(z[at], size=min(points, len(at) | 1), mode="reflect")
    return np.asarray(np.interp(np.arange(len(z)), at, levels))


def _parted(z: Points) -> _Parted | None:
    """The points by the nearer of two levels; None where one of them has hardly any."""
    low, high = (percentile_filter(z, p, size=EXTREMES, mode="reflect") for p in (OUTSIDE, 100 - OUTSIDE))
    mostly_high = bool(np.mean(z > (low + high) / 2) > 0.5)
    apart = percentile_filter(high - low, MOSTLY, size=min(4 * APART, len(z) | 1), mode="reflect")
    for _ in range(ROUNDS):
        upper = z > (high - apart / 2 if mostly_high else low + apart / 2)
        if min(upper.sum(), (~upper).sum()) < max(FEWEST, RAREST * len(z)):
            return None
        low, high = _level(z, ~upper), _level(z, upper)
        apart = median_filter(high - low, size=min(APART, len(z) | 1), mode="reflect")
        apart = np.maximum(apart, NEARER * np.median(apart))
    place = (z - (high - apart if mostly_high else low)) / np.maximum(apart, LEAST)
    return _Parted(upper, apart, float(np.mean((place > MIDDLE[0]) & (place < MIDDLE[1]))))


def _are_two(parted: _Parted) -> bool:
    """Whether there are two levels indeed, between which points change as often as chance makes, all through the curve."""
    if parted.between > BETWEEN or float(np.median(parted.apart)) < LEAST:
        return False
    return all(_turns(part) >= TURNS for part in np.array_split(parted.high, 4))


def _turns(high: Bool[np.ndarray, " point"]) -> float:
    """Changes of side, as a share of those that chance makes."""
    share = float(np.mean(high))
    expected = 2 * share * (1 - share) * (len(high) - 1)
    return float(np.sum(high[1:] != high[:-1])) / expected if expected else 0.0


def _by_chance(members: Bool[np.ndarray, " point"]) -> Bool[np.ndarray, " point"]:
    """Those points without runs of them that are too long for chance."""
    share = float(np.mean(members))
    longest = np.log(CHANCE / (len(members) * (1 - share))) / np.log(share)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], members, [False]]).astype(np.int8)))
    kept = members.copy()
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if last - first > longest:
            kept[first:last] = False
    return kept


def _together(z: Points, parted: _Parted) -> Points:
    """The curve with the rarer source at the level of the other; the latter's own points stay as they are."""
    rare = parted.high if np.mean(parted.high) <= 0.5 else ~parted.high
    points = int(np.clip(np.mean(rare) * EXTREMES, NEAR, LEVEL)) | 1
    moved = z + _level(z, ~rare) - _level(z, rare, points)
    return np.where(_by_chance(rare), moved, z)


def _may_be_two(z: Points) -> bool:
    """Whether the beginning of a part of a long curve has two levels."""
    parted = _parted(z[: LONG // SAMPLES])
    return parted is not None and _are_two(parted)


def one_level(z: Points) -> Points:
    """The curve with the batches of rarer sources put at the level of the most common one.

    Args:
        z: a curve on its scale of logarithms.

    Returns:
        The same curve where it has no such sources.
    """
    if len(z) > LONG and not any(_may_be_two(part) for part in np.array_split(z, SAMPLES)):
        return z
    for _ in range(SOURCES - 1):
        parted = _parted(z) if len(z) >= 4 * FEWEST else None
        if parted is None or not _are_two(parted):
            return z
        z = _together(z, parted)
    return z
