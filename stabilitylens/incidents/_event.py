"""Event: an excursion or a lasting rise of a curve, given its kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stabilitylens.incidents._curve import Points
from stabilitylens.incidents._excursions import Excursion
from stabilitylens.incidents._incident import Kind
from stabilitylens.incidents._rises import Rise
from stabilitylens.incidents._tail import Tail

#: a data outlier has one point at half height and is gone within 3, in public logs; a spike is wider.
OUTLIER_WIDTH, OUTLIER_DECAY = 1, 3
#: two neighbouring points are two bad batches where independent points as high meet in this many runs of that length.
#: *Heuristic*.
MEETING = 0.002
#: with fewer points after it nobody can say whether a rise at the end of the record lasts. *Heuristic*.
UNDECIDED = 3
#: a rise of this much a point is a slow divergence (10 % in 200), a slower one is a drift. *Heuristic*:
#: half of that, so that noise in the rate does not decide.
DIVERGING = float(np.log(1.10)) / 200 / 2


@dataclass(frozen=True)
class Event:
    """An excursion or a lasting rise with its kind; positions are points of the curve.

    Attributes:
        height: how far its peak is above the base, on the curve's scale.
        alike: for an outlier, how many points as high the run's noise is expected to have by itself.
        noise_known: whether the run has points enough for that to be known.
        every: after how many points it comes again, where it does.
        reason: what explains it, in a clause; what is explained is for information.
    """

    kind: Kind
    start: int
    peak: int
    end: int
    base: float
    sigma: float
    width: int
    back: bool
    clarity: float
    height: float = 0.0
    alike: float = 0.0
    noise_known: bool = False
    every: float | None = None
    reason: str = ""


def _met_by_chance(flat: Points, x: Excursion, noise: Tail | None) -> bool:
    """Whether two neighbours are two bad batches: single points as high are so common that two of them meet."""
    least = float(np.sort(flat[x.start : x.end + 1])[-2])
    return noise is not None and noise.as_high((least - x.base) / x.noise) ** 2 / len(flat) >= MEETING


def _is_outlier(flat: Points, x: Excursion, noise: Tail | None) -> bool:
    """Whether an excursion is a bad batch: one point, or two in a run where such points are common."""
    if x.read_by == 1 and x.start == x.end:
        return True
    if not x.back:
        return False
    if x.read_by == 2 and x.width <= 3:
        return _met_by_chance(flat, x, noise)
    narrow = x.width <= OUTLIER_WIDTH and x.start == x.peak and x.end - x.peak <= OUTLIER_DECAY
    return narrow or x.read_by == 1


def kind_of(flat: Points, x: Excursion, noise: Tail | None) -> Kind:
    """The kind of an excursion of a curve without its descent."""
    if not x.back and len(flat) - x.start > UNDECIDED:
        return "level_shift"
    return "outlier" if _is_outlier(flat, x, noise) else "spike"


def of_excursion(x: Excursion, kind: Kind, noise: Tail | None) -> Event:
    """An excursion as an event."""
    alike = noise.as_high(x.sigma) if noise is not None and kind == "outlier" else 0.0
    return Event(kind, x.start, x.peak, x.end, x.base, x.sigma, x.width, x.back, x.clarity, x.height, alike, noise is not None)


def of_rise(z: Points, up: Rise, kind: Kind | None = None, reason: str = "") -> Event:
    """A lasting rise of a curve as an event; without another kind its rate tells a divergence from a drift."""
    kind = kind or ("divergence" if up.rate >= DIVERGING else "drift")
    width = int(np.sum(z[up.start :] >= up.base + up.height / 2))
    return Event(kind, up.start, up.peak, len(z) - 1, up.base, up.sigma, width, False, up.clarity, up.height, reason=reason)
