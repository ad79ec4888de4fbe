"""Excursions: where a curve left its expected level upwards, each found once, measured once.

Every width of reading flags points; flagged points that touch are one excursion. It is then measured on
the curve itself, against the level that was expected where it stood out most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.ndimage import find_objects, label
from scipy.special import ndtri

from stabilitylens.incidents._curve import Points
from stabilitylens.incidents._scores import CLIP, Readings, Score

#: an excursion begins and ends where the curve passes this share of its height, or this many sigma.
#: *Heuristic*: decay to 10 % is how public logs were measured; noise does not allow less than 1.5 sigma.
FOOT, FOOT_SIGMA = 0.1, 1.5
#: flagged stretches with at most this many quiet points between them are one event. *Heuristic*.
JOIN = 3
#: what is left of a flagged stretch is an excursion of its own if it is this high, as a share. *Heuristic*.
TWIN = 0.5
#: multiples of it, modulo 1, fill the unit interval evenly
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Excursion:
    """One event on a curve; positions are points of the curve, both ends inclusive.

    Attributes:
        base: the level that was expected, on the curve's scale; height: how far the peak is above it.
        sigma: height over the noise of single points there.
        noise: that noise.
        width: points at or above half height.
        back: whether the curve came back within the record.
        clarity: its best score over the threshold of that score, above 1.
        level: how far its middle value is above the base.
        held: how far its mean is, its points held within 3 sigma: a single high one does not make it.
        read_by: the widest reading that flagged it: 1 where only single points stand out, 2 for a pair.
    """

    start: int
    peak: int
    end: int
    base: float
    height: float
    sigma: float
    noise: float
    width: int
    back: bool
    clarity: float
    level: float
    held: float
    read_by: int


@dataclass(frozen=True)
class _Stretch:
    """Flagged points that touch: first, last, where they stand out most, the base there, and how clearly."""

    first: int
    last: int
    top: int
    base: float
    clarity: float
    read_by: int


def _stretches(found: list[Score]) -> list[_Stretch]:
    """What any of the readings flagged."""
    n = len(found[0].sigma)
    read_by = np.zeros(n, int)
    best, base = np.full(n, -np.inf), np.full(n, np.nan)
    for reading in found:
        ratio = np.nan_to_num(reading.sigma / reading.threshold, nan=-np.inf)
        better = ratio > best
        best[better], base[better] = ratio[better], reading.base[better]
        for t in np.flatnonzero(ratio > 1):
            first = t if reading.width == 2 else t - reading.width // 2
            read_by[max(0, first) : first + reading.width] = reading.width
    out = []
    for (where,) in find_objects(label(read_by)[0]):
        top = where.start + int(np.argmax(best[where]))
        widest = int(read_by[where].max())
        out.append(_Stretch(where.start, where.stop - 1, top, float(base[top]), float(best[top]), widest))
    return out


def _walk(z: Points, at: int, step: int, foot: float, patience: int) -> int:
    """The last point, going from ``at`` by ``step``, before ``patience`` points in a row below ``foot``."""
    last, low, i = at, 0, at + step
    while 0 <= i < len(z) and low < patience:
        low = low + 1 if z[i] <= foot else 0
        last = i if low == 0 else last
        i += step
    return last


def _measure(z: Points, flagged: _Stretch, noise: float) -> Excursion:
    """Peak, ends, width and recovery of the excursion that a flagged stretch is part of."""
    start, end, base = flagged.first, flagged.last, flagged.base
    if flagged.read_by == 1:
        peak, back = start + int(np.argmax(z[start : end + 1])), end < len(z) - 1
        height = float(z[peak] - base)
        return Excursion(start, peak, end, base, height, height / noise, noise, 1, back, flagged.clarity, height, min(height, CLIP * noise), 1)
    patience = 1 if end - start < 4 else 2
    peak = start + int(np.argmax(z[start : end + 1]))
    for _ in range(3):
        foot = base + max(FOOT * (z[peak] - base), FOOT_SIGMA * noise)
        start, end = _walk(z, peak, -1, foot, patience), _walk(z, peak, 1, foot, patience)
        top = start + int(np.argmax(z[start : end + 1]))
        if top == peak:
            break
        peak = top
    height = float(z[peak] - base)
    width = int(np.sum(z[start : end + 1] >= base + height / 2))
    level, back = float(np.median(z[start : end + 1])) - base, end < len(z) - 1
    held, sigma = float(np.mean(np.minimum(z[start : end + 1] - base, CLIP * noise))), height / noise
    return Excursion(start, peak, end, base, height, sigma, noise, width, back, flagged.clarity, level, held, flagged.read_by)


def _pieces(z: Points, flagged: _Stretch, noise: float) -> list[Excursion]:
    """The excursions within one flagged stretch: a wide mean may flag two at once, and the gap between them."""
    pieces: list[Excursion] = []
    rest, least = [flagged], -np.inf
    while rest:
        whole = rest.pop()
        if float(np.max(z[whole.first : whole.last + 1])) < least:
            continue
        top = _measure(z, whole, noise)
        pieces, least = [*pieces, top], max(least, top.base + TWIN * top.height)
        before = replace(whole, last=min(whole.last, top.start - 1) - JOIN)
        after = replace(whole, first=max(whole.first, top.end + 1) + JOIN)
        rest += [part for part in (before, after) if part.last > part.first]
    return sorted(pieces, key=lambda x: x.start)


def excursions(z: Points, read: Readings) -> list[Excursion]:
    """All excursions of a curve, in order of start."""
    found: list[Excursion] = []
    for new in (x for flagged in _stretches(read.scores) for x in _pieces(z, flagged, float(read.noise[flagged.top]))):
        if found and new.start <= found[-1].end + JOIN and not _elsewhere(found[-1], new.base):
            new = _joined(found.pop(), new)
        found.append(new)
    return found


def without(z: Points, found: list[Excursion]) -> Points:
    """The curve with its excursions taken out, and ordinary noise in their place.

    The noise is a fixed sequence with a Gaussian's quantiles: nothing at all there would look like too little.
    """
    quiet = z.copy()
    for x in found:
        spread = ndtri((np.arange(1, x.end - x.start + 2) * GOLDEN) % 1.0)
        quiet[x.start : x.end + 1] = x.base + x.noise * spread
    return quiet


def _elsewhere(last: Excursion, base: float) -> bool:
    """Whether the curve has settled at a new level after an excursion it never came back from."""
    return not last.back and base > last.base + last.level / 2


def _joined(a: Excursion, b: Excursion) -> Excursion:
    """Two measured stretches as one event; one that lies within the other adds nothing."""
    high = a if a.height >= b.height else b
    if b.end <= a.end:
        return replace(high, start=a.start, end=a.end, width=max(a.width, b.width), back=a.back, read_by=max(a.read_by, b.read_by))
    return replace(high, start=min(a.start, b.start), end=b.end, width=a.width + b.width, back=b.back, read_by=max(a.read_by, b.read_by))
