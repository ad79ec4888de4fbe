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
    for every in _candidates(starts):
        times = (starts - incident.start_step) / every
        on = np.abs(times - np.round(times)) < REGULAR
        chance = max(2 * REGULAR, points / every) ** (int(on.sum()) - 2)
        if every > 1 and on.sum() >= max(FEWEST, MOSTLY * len(starts)) and chance < CHANCE and _mostly_each(starts[on], every):
            text = f"{int(on.sum())} such incidents came at multiples of {every:.4g} steps, as the edges of an epoch or a shard do"
            yield Coincidence("period", incident.start_step, float(every), text)
            return


def _candidates(starts: Int[np.ndarray, " incident"]) -> list[float]:
    """The intervals between neighbours, over the whole span, where a late detection weighs less, and as they are."""
    apart, span = np.unique(np.diff(starts)), int(starts[-1] - starts[0])
    return [*(span / np.round(span / apart)).tolist(), *apart.tolist()]


def _mostly_each(starts: Int[np.ndarray, " incident"], every: float) -> bool:
    """Whether most come one period after the one before: a comb of many empty teeth is none."""
    return bool(np.mean(np.round(np.diff(starts) / every) == 1) >= 0.5)
