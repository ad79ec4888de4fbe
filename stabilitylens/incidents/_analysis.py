"""One look at a series for all detectors: its excursions and its lasting rise, each given one kind."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Int

from stabilitylens.incidents._curve import Curve, Points, curve
from stabilitylens.incidents._event import Event, kind_of, of_excursion, of_rise
from stabilitylens.incidents._excursions import Excursion
from stabilitylens.incidents._mixture import one_level
from stabilitylens.incidents._rises import FEW, Rise, rise
from stabilitylens.incidents._scores import ABOVE_COMMON, ABOVE_OTHERS
from stabilitylens.incidents._setting import ALONE, Setting, setting
from stabilitylens.incidents._shift import is_shift, jump, settles
from stabilitylens.incidents._sieve import is_bump, rose
from stabilitylens.incidents._tail import tail
from stabilitylens.incidents._teeth import is_tooth, period, told, without_course
from stabilitylens.incidents._trend import descent
from stabilitylens.incidents._windows import Seen, look
from stabilitylens.run import Run, Series

#: rewards make a loss wander: what is told of it stands out by so many sigma, and as high in no more of such runs.
#: *Heuristic*.
REWARDED, REWARDED_ALIKE = 12.0, 0.02
#: a learning rate that restarts this many points before or after a shift explains it. *Heuristic*.
STAGE = 3


@dataclass(frozen=True)
class Analysis:
    """A series' finite points and what happened to them, in order."""

    curve: Curve
    events: tuple[Event, ...]


def _part_of(x: Excursion, up: Rise) -> bool:
    """Whether an excursion is nothing but a piece of a lasting rise; single logs and pairs stand for themselves."""
    return x.end >= up.start and (not x.back or (x.read_by > 2 and x.start <= up.reached))


@dataclass(frozen=True)
class _Look:
    """A curve as the detectors see it: its descent, what is left without it and its epochs, and what that shows."""

    trend: Points
    flat: Points
    seen: Seen


def _look(z: Points, edges: Int[np.ndarray, " edge"], above: float) -> _Look:
    trend = descent(z)
    flat = without_course(z - trend, edges)
    return _Look(trend, flat, look(flat, above))


def _excursions(found: Curve, looked: _Look, edges: Int[np.ndarray, " edge"], up: Rise | None, learns: bool) -> list[Event]:
    """The excursions of a curve as events, without those that are part of a lasting rise."""
    noise, seen = tail(looked.seen.alone), looked.seen
    apart = [x for x in seen.found if not (up and _part_of(x, up))]
    kinds = [kind_of(looked.flat, x, noise) for x in apart]
    apart = [replace(x, base=x.base + float(looked.trend[x.peak])) for x in apart]
    kept = [rose(found, x) and not (learns and is_bump(found, x)) for x in apart]
    events = [of_excursion(x, kind, noise) for x, kind, keep in zip(apart, kinds, kept, strict=True) if keep]
    events = told(events, edges)
    every = period(seen.tame) if events else None
    return [event for event in events if not is_tooth(found.z, event, every)]


def analyse(series: Series, learns: bool = True, around: Setting = ALONE) -> Analysis:
    """Everything that happened to a scalar series.

    Args:
        series: one value a step.
        learns: whether it comes down as the model learns, as a loss does: then warm-up has a bump.
        around: what else the run says that explains it.
    """
    found = curve(series)
    if len(found) < 2 or (len(found) < FEW and found.size is not None):
        return Analysis(found, ())  # a loss around zero has no level to rise from, and few points show no spread
    found = replace(found, z=one_level(found.z)) if learns else found
    edges, above = np.searchsorted(found.steps, around.epochs), ABOVE_COMMON if learns else ABOVE_OTHERS
    looked = _look(found.z, edges, above)
    up = rise(looked.trend + looked.flat, looked.flat, looked.seen)
    events = [] if up is None else [_of_lasting(found, up, around)]
    if up is not None and learns and events[0].kind == "level_shift":
        shift = np.where(np.arange(len(found)) >= up.start, jump(found.z, up), 0.0)
        looked = _look(found.z - shift, edges, above)
        looked = replace(looked, trend=looked.trend + shift)
    events += _excursions(found, looked, edges, up, learns)
    if around.rewarded:
        events = [e for e in events if e.back and e.sigma >= REWARDED and e.alike < REWARDED_ALIKE]
    return Analysis(found, tuple(sorted(events, key=lambda event: event.start)))


def _of_lasting(found: Curve, up: Rise, around: Setting) -> Event:
    """A lasting rise as an event: a new stage, a level shift, a divergence or a drift."""
    height = jump(found.z, up)
    if not settles(found.z, up, height):
        return of_rise(found.z, up)
    if around.restarts_at(int(found.steps[up.start]), _reach(found, up.start)):
        return of_rise(found.z, up, "level_shift", "the learning rate restarts there, as it does for a new stage")
    return of_rise(found.z, up, "level_shift" if is_shift(found.z, up, height) else None)


def _reach(found: Curve, at: int) -> int:
    """The steps of three points around one."""
    near = found.steps[max(0, at - STAGE) : at + STAGE + 1]
    return int(near[-1] - near[0]) // 2


_Seen = dict[int, tuple[weakref.ref[np.ndarray], weakref.ref[Run], Analysis]]
_SEEN: _Seen = {}


def _forget(seen: _Seen, key: int, _: object) -> None:
    """Bound to its dictionary: at the end of the interpreter the module's names are gone."""
    seen.pop(key, None)


def analysis(run: Run, name: str = "loss") -> Analysis | None:
    """The analysis of a run's scalar series, made once; None where the run has no such series."""
    series = run[name] if name in run else None
    if series is None or series.values.ndim != 1:
        return None
    key, seen = id(series.values), _SEEN.get(id(series.values))
    if seen is None or seen[0]() is not series.values or seen[1]() is not run:
        forget = weakref.ref(series.values, partial(_forget, _SEEN, key))
        made = analyse(series, name == "loss", setting(run) if name == "loss" else ALONE)
        _SEEN[key] = seen = (forget, weakref.ref(run), made)
    return seen[2]
