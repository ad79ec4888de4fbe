"""What comes again and again by the order of the data: the teeth of epochs and shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int
from scipy.fft import next_fast_len

from stabilitylens.incidents._curve import Points
from stabilitylens.incidents._event import Event

#: events are the teeth of an epoch with this many intervals, of which this share are a multiple of the usual one,
#: give or take this share of it. *Heuristic*: by chance one in fifty sets of four events is as regular.
PERIODS, MOSTLY, REGULAR = 3, 0.8, 0.1
#: a curve has a period where its values, so many points apart, correlate by this much, and by this much more than
#: some nearer ones; it holds at least so many periods, of so many points. *Heuristic*: noise of 200 points correlates
#: by 0.07.
ALIKE, PROMINENT, CYCLES, SHORTEST = 0.15, 0.25, 3, 8
#: so many points from the middle of a record show its period
LONG = 1 << 18
#: of a period and its multiples the first is meant that stands out by this share of the best. *Heuristic*.
NEARLY = 0.9
#: an excursion is a tooth where the same place in half of the other periods is up by this share of it: the highest of
#: several teeth is high by chance too. *Heuristic*.
TOOTH = 0.35
#: what comes at a period is told where it stands out by so many sigma and fills no more than this share of the period:
#: a ripple is how the data are ordered, a blow is a batch. *Heuristic*.
TALL, NARROW = 8.0, 0.1
#: what begins within so many points of an epoch's first begins with it. *Heuristic*: a spike rises over one or two.
BESIDE = 3
#: the course of an epoch is read from so many places in it and so many epochs, *heuristic*,
PLACES, EPOCHS = 16, 3
#: is believed where it goes up by this many standard errors and where this share of the epochs correlate with it by so
#: much: a loss that falls in the first epoch and rises in the others is learning them by heart. *Heuristic*,
SURE, LIKE, MANY = 5.0, 0.6, 0.75
#: and is up to so many times as strong in one of them. *Heuristic*.
STRONGEST = 2.0


def interval(starts: Sequence[int]) -> float | None:
    """The interval at which events come, some of them left out: then it is the order of the data."""
    apart = np.diff(starts)
    if len(apart) < PERIODS:
        return None
    usual = float(np.median(apart))
    times = apart / usual
    regular = float(np.mean((np.abs(times - np.round(times)) < REGULAR) & (times > 0.5)))
    return usual if regular >= MOSTLY else None


def is_blow(event: Event, every: float) -> bool:
    """Whether what comes at a period stands out so far, and is over so soon, that it is to be told."""
    return event.sigma >= TALL and event.end - event.start + 1 <= NARROW * every


def _at_edges(events: Sequence[Event], edges: Int[np.ndarray, " edge"]) -> bool:
    """Whether most of some events begin with an epoch."""
    return len(edges) > 0 and float(np.mean([np.min(np.abs(edges - e.start)) <= BESIDE for e in events])) >= MOSTLY


def told(events: Sequence[Event], edges: Int[np.ndarray, " edge"]) -> list[Event]:
    """The events without ripples: those of a kind that comes at an interval are left out, or say it and what explains it."""
    out: list[Event] = []
    for kind in dict.fromkeys(event.kind for event in events):
        alike = [event for event in events if event.kind == kind]
        every = interval([event.start for event in alike])
        reason = "epochs begin there" if _at_edges(alike, edges) else ""
        out += alike if every is None else [replace(e, every=every, reason=reason) for e in alike if is_blow(e, every)]
    return out


def period(flat: Points) -> float | None:
    """After how many points a curve does the same again, by its autocorrelation; None where it does not."""
    flat = flat[max(0, len(flat) - LONG) // 2 :][:LONG]
    n = len(flat)
    if n < CYCLES * 2 * SHORTEST:
        return None
    spectrum = np.fft.rfft(flat - flat.mean(), next_fast_len(2 * n))
    alike = np.fft.irfft(np.abs(spectrum) ** 2)[: n // 2 + 1]
    if not alike[0] > 0:
        return None
    alike = alike / alike[0] * n / np.arange(n, n - len(alike), -1)
    near = alike[: n // CYCLES + 1]
    stands = near - np.minimum.accumulate(near)
    first = int(np.argmax(stands >= NEARLY * stands.max()))
    best = first + int(np.argmax(stands[first : first + max(SHORTEST, first // 4)]))
    return _refined(alike, best) if best >= SHORTEST and stands[best] >= PROMINENT and near[best] >= ALIKE else None


def _refined(alike: Points, best: int) -> float:
    """A period to a fraction of a point, from its highest multiple that is in reach."""
    every, reach = float(best), max(1, best // 25)
    for times in range(2, (len(alike) - 1 - reach) // best + 1):
        middle = round(times * every)
        beside = alike[middle - reach : middle + reach + 1]
        every = (middle - reach + int(np.argmax(beside))) / times if len(beside) else every
    return every


def is_tooth(z: Points, event: Event, every: float | None) -> bool:
    """Whether the curve stands as high at the same place of its other periods as in an event."""
    if every is None or is_blow(event, every):
        return False
    start, points = event.start, min(event.end - event.start + 1, max(1, int(every) // 4))
    shifts = range(-int(start / every), int((len(z) - points - start) / every) + 1)
    others = [_up(z, start + round(k * every), points, int(every)) for k in shifts if k]
    return len(others) >= CYCLES - 1 and float(np.median(others)) >= TOOTH * _up(z, start, points, int(every))


def _up(z: Points, first: int, points: int, every: int) -> float:
    """How far a stretch is above the middle of the period around it."""
    around = z[max(0, first + points // 2 - every // 2) : first + points // 2 + every // 2 + 1]
    return float(np.mean(z[first : first + points]) - np.median(around))


def without_course(flat: Points, edges: Int[np.ndarray, " edge"]) -> Points:
    """The curve without the course that every epoch takes, where that goes up: the loss climbs, and drops at the edge.

    Args:
        flat: the curve without its descent.
        edges: the first point of each epoch but the first.
    """
    spans = [np.arange(a, b) for a, b in zip([0, *edges], [*edges, len(flat)], strict=True) if b - a >= 2 * PLACES]
    if len(spans) < EPOCHS:
        return flat
    courses = np.array([[float(np.median(p)) for p in np.array_split(flat[span], PLACES)] for span in spans])
    courses -= np.median(courses, axis=1, keepdims=True)
    usual = np.median(courses, axis=0)
    error = float(np.median(np.abs(courses - usual))) * 1.4826 * 1.2533 / len(spans) ** 0.5
    climbs = float(np.max(usual - np.minimum.accumulate(usual)))
    if climbs < SURE * max(error, 1e-9) or np.mean([_like(course, usual) >= LIKE for course in courses]) < MANY:
        return flat
    at = np.concatenate([[0.0], np.arange(PLACES) + 0.5, [float(PLACES)]])
    whole = np.concatenate([[1.5 * usual[0] - 0.5 * usual[1]], usual, [1.5 * usual[-1] - 0.5 * usual[-2]]])
    level = flat.copy()
    for span, course in zip(spans, courses, strict=True):
        strength = float(np.clip(course @ usual / (usual @ usual), 0.0, STRONGEST))
        level[span] -= strength * np.interp((np.arange(len(span)) + 0.5) * PLACES / len(span), at, whole)
    return level


def _like(course: Float[np.ndarray, " place"], usual: Float[np.ndarray, " place"]) -> float:
    sizes = float(np.linalg.norm(course) * np.linalg.norm(usual))
    return float(course @ usual) / sizes if sizes else 0.0
