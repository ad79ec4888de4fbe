"""A long curve is looked at window by window, so that memory does not grow with all that is learnt of each point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stabilitylens.incidents._curve import Points
from stabilitylens.incidents._excursions import Excursion, excursions, without
from stabilitylens.incidents._scores import Ground, Readings, readings
from stabilitylens.incidents._sieve import is_scrap

#: points of a window, and of its overlap with either neighbour. *Heuristic*: some megabytes; thirty of the widest means.
WINDOW, OVERLAP = 1 << 16, 2048
#: excursions that cover more than this share of a curve are no exceptions, and are not left out. *Heuristic*.
MOST = 0.5
#: a mean that reaches this share of its threshold is suspected to be an excursion. *Heuristic*.
SUSPECTED = 0.7


@dataclass(frozen=True)
class Seen(Ground):
    """What a curve without its descent shows: its excursions, and the ground that they stand out of."""

    found: list[Excursion]


def look(flat: Points, above: float) -> Seen:
    """All excursions of a curve without its descent; ``above`` is how far above the common ones a single point has to be."""
    parts = [_part(flat, *span, above) for span in _spans(len(flat))]
    if len(parts) == 1:
        return parts[0]
    noise, tame, alone = (np.concatenate([getattr(part, name) for part in parts]) for name in ("noise", "tame", "alone"))
    return Seen(noise, tame, alone, [x for part in parts for x in part.found])


def _spans(n: int) -> Iterator[tuple[int, int]]:
    """First point and stop of each window, without its overlaps; the last is the longest."""
    starts = range(0, max(1, n - WINDOW // 2), WINDOW)
    return zip(starts, [*starts[1:], n], strict=True)


def _part(flat: Points, first: int, stop: int, above: float) -> Seen:
    """What one window shows that begins in it."""
    left, right = max(0, first - OVERLAP), min(len(flat), stop + OVERLAP)
    window = flat[left:right]
    read = _second_look(window, above, len(flat))
    single = read.scores[0].threshold
    found = [_moved(x, left, right < len(flat)) for x in excursions(window, read) if not is_scrap(x, single)]
    inner = slice(first - left, stop - left)
    return Seen(read.noise[inner], read.tame[inner], read.alone, [x for x in found if first <= x.start < stop])


def _moved(x: Excursion, by: int, goes_on: bool) -> Excursion:
    """An excursion of a window as one of the curve; where the curve goes on, it is not the record that ends it."""
    return replace(x, start=x.start + by, peak=x.peak + by, end=x.end + by, back=x.back or goes_on)


def _left_out(z: Points, found: list[Excursion]) -> Points | None:
    """The curve without the excursions that it came back from; None where those are none, or most of it."""
    known = [x for x in found if x.back]
    covered = sum(x.end - x.start + 1 for x in known)
    return without(z, known) if 0 < covered < MOST * len(z) else None


def _second_look(flat: Points, above: float, points: int) -> Readings:
    """The readings, once more with what is already found left out of the expectation and the noise.

    What is wide and nearly found is left out of how far the means stray: several excursions would hide each other.
    """
    read = readings(flat, above=above, points=points)
    quiet = _left_out(flat, excursions(flat, read))
    read = read if quiet is None else readings(flat, quiet, above=above, points=points)
    means = [replace(s, threshold=SUSPECTED * s.threshold) for s in read.scores if s.width > 2]
    quiet = flat if quiet is None else quiet
    calm = _left_out(quiet, excursions(flat, replace(read, scores=means))) if means else None
    return read if calm is None else readings(flat, quiet, calm, above, points)
