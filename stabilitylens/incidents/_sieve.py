"""What looks like an excursion and is none: the bump of warm-up, a late drop, and the scraps of a mean."""

from __future__ import annotations

import numpy as np

from stabilitylens.incidents._curve import Curve, Points
from stabilitylens.incidents._excursions import Excursion
from stabilitylens.incidents._scores import MEAN

#: a run has begun to learn once it is this far below its first point, or this many points old.
#: What rises and falls before that is the bump of warm-up. *Heuristic*.
LEARNT, OLD = 0.05, 50
#: in sigma, what the medians of the first points may differ by without anything learnt. *Heuristic*: three standard
#: deviations of that difference.
UNSURE = 2.5
#: the least height of an excursion. *Heuristic*: a third of the lowest recovered spike in public logs, x 1.06.
LEAST = 0.02
#: the share of its height by which the values themselves must climb. *Heuristic*: a spike of 3 % on a descent of
#: 0.7 % a step climbs by three quarters of it.
CLIMB = 0.55
#: what is this high at once, and over at once, is no bump, however early. *Heuristic*: half as high again, and nearly all
#: of it within one log up and one down.
GLARING, AT_ONCE = float(np.log(1.5)), 0.8
#: points before an excursion from which its climb may begin. *Heuristic*: a data outlier is gone within three.
CLIMBING = 3
#: an excursion of so many points has a level of its own, which is compared with that of so many before it, *heuristic*,
WIDE, WIDE_BEFORE = 8, 9
#: and is higher by this share of its height. *Heuristic*: on a steep descent little of a rise remains.
STOOD = 0.1
#: what three points reach that are at three sigma each is 5.2; chance puts a few single high points together. *Heuristic*.
HELD = 4.8


def is_bump(found: Curve, x: Excursion) -> bool:
    """Whether an excursion is the bump of warm-up: before anything was learnt, and no glaring blow."""
    if x.start >= OLD or (x.height > GLARING and _is_blow(found.z, x)):
        return False
    first, latest = np.median(found.z[: min(3, x.start)]), np.median(found.z[max(0, x.start - 5) : x.start])
    return x.back and not latest < first - max(LEARNT, UNSURE * x.noise)


def _is_blow(z: Points, x: Excursion) -> bool:
    """Whether an excursion goes up within one log and down within one: warm-up swells."""
    if x.start == x.end:
        return True
    edges = (z[x.start] - z[x.start - 1], z[x.end] - z[x.end + 1]) if 0 < x.start and x.end + 1 < len(z) else (0.0,)
    return float(min(edges)) >= AT_ONCE * x.height


def rose(found: Curve, x: Excursion) -> bool:
    """Whether the values themselves went up, and by enough: a drop that comes later than expected is no event."""
    if x.height < LEAST or x.start == 0:
        return False
    climb = found.z[max(0, x.start - CLIMBING) : x.peak + 1]
    if float(np.max(climb - np.minimum.accumulate(climb))) < CLIMB * x.height:
        return False
    return x.end - x.start + 1 < WIDE or _stood_lower(found, x)


def _stood_lower(found: Curve, x: Excursion) -> bool:
    """Whether the level was lower just before a wide excursion: after a step down a curve settles, and that is no rise."""
    before = found.z[max(0, x.start - WIDE_BEFORE) : x.start]
    lowest = min(float(np.median(before[i : i + 3])) for i in range(max(1, len(before) - 2)))
    return float(np.median(found.z[x.start : x.end + 1])) - lowest >= STOOD * x.level


def is_scrap(x: Excursion, single: float) -> bool:
    """Whether what is left of a stretch that a mean has flagged does not stand out by itself."""
    points = x.end - x.start + 1
    if points == 1:
        return x.sigma < single
    return x.read_by > 2 and (x.level * points**0.5 < MEAN * x.noise or x.held * points**0.5 < HELD * x.noise)
