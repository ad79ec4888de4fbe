"""What looks like an excursion and is none: the bump of warm-up, a late drop, teeth, and the scraps of a mean."""

from __future__ import annotations

import numpy as np
from scipy.fft import next_fast_len

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
#: a single log that is this high is no bump, however early. *Heuristic*: half as high again.
GLARING = float(np.log(1.5))
#: points before an excursion from which its climb may begin. *Heuristic*: a data outlier is gone within three.
CLIMBING = 3
#: an excursion of so many points has a level of its own, which is compared with that of so many before it, *heuristic*,
WIDE, WIDE_BEFORE = 8, 9
#: and is higher by this share of its height. *Heuristic*: on a steep descent little of a rise remains.
STOOD = 0.1
#: events are the teeth of an epoch with this many intervals, of which this share are a multiple of the usual one,
#: give or take this share of it. *Heuristic*: by chance one in fifty sets of four events is as regular.
PERIODS, MOSTLY, REGULAR = 3, 0.8, 0.1
#: a curve has a period where its values, so many points apart, correlate by this much, and by this much more than
#: some nearer ones; it holds at least so many periods. *Heuristic*: noise of 200 points correlates by 0.07.
ALIKE, PROMINENT, CYCLES = 0.15, 0.25, 3
#: of a period and its multiples the first is meant that stands out by this share of the best. *Heuristic*.
NEARLY = 0.9
#: an excursion is a tooth where the same place in half of the other periods is up by this share of it: the highest of several teeth is high by chance too. *Heuristic*.
TOOTH = 0.35
#: what three points reach that are at three sigma each is 5.2; chance puts a few single high points together. *Heuristic*.
HELD = 4.8


def is_bump(found: Curve, x: Excursion) -> bool:
    """Whether an excursion is the bump of warm-up: before anything was learnt, and no glaring single log."""
    if x.start >= OLD or (x.start == x.end and x.height > GLARING):
        return False
    first, latest = np.median(found.z[: min(3, x.start)]), np.median(found.z[max(0, x.start - 5) : x.start])
    return x.back and not latest < first - max(LEARNT, UNSURE * x.noise)


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


def is_regular(starts: list[int]) -> bool:
    """Whether what happens happens at regular intervals, some of them left out: then it is the order of the data."""
    apart = np.diff(starts)
    if len(apart) < PERIODS:
        return False
    times = apart / np.median(apart)
    return float(np.mean((np.abs(times - np.round(times)) < REGULAR) & (times > 0.5))) >= MOSTLY


def period(flat: Points) -> float | None:
    """After how many points a curve does the same again, by its autocorrelation; None where it does not."""
    n = len(flat)
    if n < CYCLES * 2 * WIDE:
        return None
    spectrum = np.fft.rfft(flat - flat.mean(), next_fast_len(2 * n))
    alike = np.fft.irfft(np.abs(spectrum) ** 2)[: n // 2 + 1]
    if not alike[0] > 0:
        return None
    alike = alike / alike[0] * n / np.arange(n, n - len(alike), -1)
    near = alike[: n // CYCLES + 1]
    stands = near - np.minimum.accumulate(near)
    first = int(np.argmax(stands >= NEARLY * stands.max()))
    best = first + int(np.argmax(stands[first : first + max(WIDE, first // 4)]))
    return _refined(alike, best) if best >= WIDE and stands[best] >= PROMINENT and near[best] >= ALIKE else None


def _refined(alike: Points, best: int) -> float:
    """A period to a fraction of a point, from its highest multiple that is in reach."""
    every, reach = float(best), max(1, best // 25)
    for times in range(2, (len(alike) - 1 - reach) // best + 1):
        middle = round(times * every)
        beside = alike[middle - reach : middle + reach + 1]
        every = (middle - reach + int(np.argmax(beside))) / times if len(beside) else every
    return every


def is_tooth(z: Points, start: int, end: int, every: float | None) -> bool:
    """Whether the curve stands as high at the same place of its other periods as from this start to this end."""
    if every is None:
        return False
    points = min(end - start + 1, max(1, int(every) // 4))
    shifts = range(-int(start / every), int((len(z) - points - start) / every) + 1)
    others = [_up(z, start + round(k * every), points, int(every)) for k in shifts if k]
    return len(others) >= CYCLES - 1 and float(np.median(others)) >= TOOTH * _up(z, start, points, int(every))


def _up(z: Points, first: int, points: int, every: int) -> float:
    """How far a stretch is above the middle of the period around it."""
    around = z[max(0, first + points // 2 - every // 2) : first + points // 2 + every // 2 + 1]
    return float(np.mean(z[first : first + points]) - np.median(around))
