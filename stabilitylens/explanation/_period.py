"""Incidents that come round at one interval, as the edges of epochs and data shards do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from stabilitylens.explanation._blind import interval
from stabilitylens.explanation._coincidence import Coincidence
from stabilitylens.incidents import Incident
from stabilitylens.run import Run

#: incidents on a comb, at least, and of all of their kind; give or take this share of its period. *Heuristic*.
FEWEST, MOSTLY, REGULAR = 4, 0.75, 0.05
#: how likely chance may put so many on a comb, for the two that make it are on it anyway. *Heuristic*.
CHANCE = 0.02


def period(run: Run, incident: Incident, incidents: Sequence[Incident]) -> Iterator[Coincidence]:
    """The interval at which incidents of the same series come, where this one is of them."""
    starts = np.unique([other.start_step for other in incidents if other.metric == incident.metric and other.kind not in ("resume", "plateau")])
    if len(starts) < FEWEST or incident.start_step not in starts:
        return
    points = interval(run[incident.metric], incident.start_step) if incident.metric in run else 1
    for every in np.unique(np.diff(starts)).tolist():
        on = _on(starts, incident.start_step, every)
        chance = max(2 * REGULAR, points / every) ** (int(on.sum()) - 2)
        if every > 1 and on.sum() >= max(FEWEST, MOSTLY * len(starts)) and chance < CHANCE and _mostly_each(starts[on], every):
            usual = float(np.median(np.diff(starts[on]) / np.round(np.diff(starts[on]) / every)))
            text = f"{int(on.sum())} such incidents came at multiples of {usual:g} steps, as the edges of an epoch or a shard do"
            yield Coincidence("period", incident.start_step, usual, text)
            return


def _on(starts: Int[np.ndarray, " incident"], start: int, every: int) -> np.ndarray:
    """Which lie on the comb through ``start``; its teeth may have come a little late each time, so neighbours count too."""
    times = (starts - start) / every
    near = np.abs(times - np.round(times)) < REGULAR
    apart = np.diff(starts) / every
    regular = (np.abs(apart - np.round(apart)) < REGULAR) & (np.round(apart) >= 1)
    return near | (np.append(False, regular) & np.append(regular, False))


def _mostly_each(starts: Int[np.ndarray, " incident"], every: int) -> bool:
    """Whether most come one period after the one before: a comb of many empty teeth is none."""
    return bool(np.mean(np.round(np.diff(starts) / every) == 1) >= 0.5)
