"""One look at a series for all detectors: its excursions and its lasting rise, each given one kind."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

import numpy as np

from stabilitylens.incidents._curve import Curve, Points, curve
from stabilitylens.incidents._excursions import Excursion, excursions, without
from stabilitylens.incidents._incident import Kind
from stabilitylens.incidents._rises import FEW, Rise, rise
from stabilitylens.incidents._scores import ABOVE_COMMON, ABOVE_OTHERS, Readings, readings
from stabilitylens.incidents._sieve import is_bump, is_regular, is_scrap, is_tooth, period, rose
from stabilitylens.incidents._tail import Tail, tail
from stabilitylens.incidents._trend import descent
from stabilitylens.run import Run, Series

#: a data outlier has one point at half height and is gone within 3, in public logs; a spike is wider.
OUTLIER_WIDTH, OUTLIER_DECAY = 1, 3
#: two neighbouring points are two bad batches where independent points as high meet in this many runs of that length.
#: *Heuristic*.
MEETING = 0.002
#: excursions that cover more than this share of a curve are no exceptions, and are not left out. *Heuristic*.
MOST = 0.5
#: a mean that reaches this share of its threshold is suspected to be an excursion. *Heuristic*.
SUSPECTED = 0.7
#: with fewer points after it nobody can say whether a rise at the end of the record lasts. *Heuristic*.
UNDECIDED = 3
#: a rise of this much a point is a slow divergence (10 % in 200), a slower one is a drift. *Heuristic*:
#: half of that, so that noise in the rate does not decide.
DIVERGING = float(np.log(1.10)) / 200 / 2


@dataclass(frozen=True)
class Event:
    """An excursion or a lasting rise with its kind; positions are points of the curve.

    ``alike`` is, for an outlier, how many points as high the run's noise is expected to have by itself.
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
    alike: float = 0.0


@dataclass(frozen=True)
class Analysis:
    """A series' finite points and what happened to them, in order."""

    curve: Curve
    events: tuple[Event, ...]


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


def _kind(flat: Points, x: Excursion, noise: Tail | None) -> Kind:
    if not x.back and len(flat) - x.start > UNDECIDED:
        return "level_shift"
    return "outlier" if _is_outlier(flat, x, noise) else "spike"


def _of_excursion(x: Excursion, kind: Kind, noise: Tail | None) -> Event:
    alike = noise.as_high(x.sigma) if noise is not None and kind == "outlier" else 0.0
    return Event(kind, x.start, x.peak, x.end, x.base, x.sigma, x.width, x.back, x.clarity, alike)


def _of_rise(found: Curve, up: Rise) -> Event:
    z, end = found.z, len(found) - 1
    kind: Kind = "divergence" if up.rate >= DIVERGING else "drift"
    width = int(np.sum(z[up.start :] >= up.base + up.height / 2))
    return Event(kind, up.start, up.peak, end, up.base, up.sigma, width, False, up.clarity)


def _part_of(x: Excursion, up: Rise) -> bool:
    """Whether an excursion is nothing but a piece of a lasting rise; single logs and pairs stand for themselves."""
    return x.end >= up.start and (not x.back or (x.read_by > 2 and x.start <= up.reached))


def _irregular(events: list[Event]) -> list[Event]:
    """The events without those kinds that come with the regularity of an epoch or a shard."""
    starts: dict[Kind, list[int]] = {}
    for event in events:
        starts.setdefault(event.kind, []).append(event.start)
    periodic = {kind for kind, at in starts.items() if is_regular(at)}
    return [event for event in events if event.kind not in periodic]


def _left_out(z: Points, found: list[Excursion]) -> Points | None:
    """The curve without the excursions that it came back from; None where those are none, or most of it."""
    known = [x for x in found if x.back]
    covered = sum(x.end - x.start + 1 for x in known)
    return without(z, known) if 0 < covered < MOST * len(z) else None


def _second_look(flat: Points, above: float) -> Readings:
    """The readings, once more with what is already found left out of the expectation and the noise.

    What is wide and nearly found is left out of how far the means stray: several excursions would hide each other.
    """
    read = readings(flat, above=above)
    quiet = _left_out(flat, excursions(flat, read))
    read = read if quiet is None else readings(flat, quiet, above=above)
    means = [replace(s, threshold=SUSPECTED * s.threshold) for s in read.scores if s.width > 2]
    quiet = flat if quiet is None else quiet
    calm = _left_out(quiet, excursions(flat, replace(read, scores=means))) if means else None
    return read if calm is None else readings(flat, quiet, calm, above)


def analyse(series: Series, learns: bool = True) -> Analysis:
    """Everything that happened to a scalar series.

    Args:
        series: one value a step.
        learns: whether it comes down as the model learns, as a loss does: then warm-up has a bump.
    """
    found = curve(series)
    if len(found) < 2 or (len(found) < FEW and found.size is not None):
        return Analysis(found, ())  # a loss around zero has no level to rise from, and few points show no spread
    trend = descent(found.z)
    flat = found.z - trend
    read = _second_look(flat, ABOVE_COMMON if learns else ABOVE_OTHERS)
    up = rise(found.z, flat, read)
    apart = [x for x in excursions(flat, read) if not (up and _part_of(x, up))]
    noise, single = tail(read.alone), read.scores[0].threshold
    kinds = [_kind(flat, x, noise) for x in apart]
    apart = [replace(x, base=x.base + float(trend[x.peak])) for x in apart]
    kept = [rose(found, x) and not (learns and is_bump(found, x)) and not is_scrap(x, single) for x in apart]
    events = _irregular([_of_excursion(x, kind, noise) for x, kind, keep in zip(apart, kinds, kept, strict=True) if keep])
    every = period(read.tame) if events else None
    events = [event for event in events if not is_tooth(found.z, event.start, event.end, every)]
    events += [_of_rise(found, up)] if up else []
    return Analysis(found, tuple(sorted(events, key=lambda event: event.start)))


_SEEN: dict[int, tuple[weakref.ref[np.ndarray], Analysis]] = {}


def analysis(run: Run, name: str = "loss") -> Analysis | None:
    """The analysis of a run's scalar series, made once; None where the run has no such series."""
    series = run[name] if name in run else None
    if series is None or series.values.ndim != 1:
        return None
    key, seen = id(series.values), _SEEN.get(id(series.values))
    if seen is None or seen[0]() is not series.values:
        forget = weakref.ref(series.values, lambda _: _SEEN.pop(key, None))
        _SEEN[key] = seen = (forget, analyse(series, name == "loss"))
    return seen[1]
