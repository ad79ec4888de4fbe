"""Who moved first: every other series around an incident, with the false discoveries kept in check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stabilitylens.explanation._scan import Scan, scan
from stabilitylens.explanation._window import Window, window
from stabilitylens.findings import Where
from stabilitylens.incidents import Incident
from stabilitylens.rules._track import place
from stabilitylens.run import Run, Series

#: expected share of false ones among what is said to have moved: the usual 5 %
RATE = 0.05
#: what is said of coincidences instead, or counts and clocks rather than measures the model
CONTEXT = frozenset(("lr", "loss_scale", "tokens", "epoch", "step_time"))
#: samples whose median is the level before a movement. *Heuristic*.
BEFORE = 5


@dataclass(frozen=True)
class Movement:
    """A series that left its own past before or with an incident.

    Attributes:
        series: its name in the run.
        where: the place that moved first, and of those the most.
        step: first step at which it stood out.
        lead: how many steps before the incident that is; 0 or less where it moved with it.
        within: steps between this sample and the one before: the movement began in there.
        sigma: height over the baseline in standard errors, signed; infinite where it became non-finite.
        before, after: its level before, and its most extreme value since.
        places: how many of its places moved, and how many there are.
    """

    series: str
    where: Where
    step: int
    lead: int
    within: int
    sigma: float
    before: float
    after: float
    places: tuple[int, int]

    @property
    def early(self) -> bool:
        """Whether it moved before the incident, and not with it."""
        return self.lead > 0

    @property
    def metric(self) -> str:
        """``grad_norm`` of ``grad_norm/layer``."""
        return self.series.partition("/")[0]

    def __str__(self) -> str:
        where = "" if str(self.where) == "the whole model" else f" of {self.where}"
        when = f"{self.lead} step{'s' * (self.lead != 1)} before" if self.lead > 0 else "with it"
        others = f", and {self.places[0] - 1} more of its {self.places[1]} places" if self.places[0] > 1 else ""
        return f"{self.series}{where} went from {self.before:.3g} to {self.after:.3g} {when} (step {self.step}){others}"

    def to_dict(self) -> dict[str, Any]:
        """The movement as plain data, keys as in the JSON contract."""
        w = self.where
        where = {"layer": w.layer, "layer_name": w.layer_name, "head": w.head}
        own = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "where"}
        return own | {"where": {k: v for k, v in where.items() if v is not None}, "places": list(self.places)}


@dataclass(frozen=True)
class _Looked:
    """One series' window, its scan, and the places that became non-finite."""

    series: Series
    window: Window
    scan: Scan


def movements(run: Run, incident: Incident) -> tuple[list[Movement], int]:
    """What moved before an incident, and with it, in the order of its onset.

    Before means from the lead to the last step before the incident, with it means from its start to its peak. Both
    questions are put to every place of every series, and each has its false discoveries controlled over all of them
    (Benjamini and Hochberg 1995, https://doi.org/10.1111/j.2517-6161.1995.tb02031.x).

    Returns:
        At most one movement a series, and how many series could be asked.
    """
    windows = list(_windows(run, incident))
    before = _moved(run, incident, [_Looked(s, w, _scan(s, w, w.lead, w.start)) for s, w in windows if w.start > w.lead])
    known = {movement.series for movement in before}
    later = [(s, w) for s, w in windows if s.name not in known and w.start < len(w.steps)]
    during = _moved(run, incident, [_Looked(s, w, _scan(s, w, w.start, len(w.steps))) for s, w in later])
    order = sorted(before + during, key=lambda m: (-m.lead, -abs(m.sigma)))
    return order, len(windows)


def _windows(run: Run, incident: Incident) -> Iterator[tuple[Series, Window]]:
    for name, series in run.series.items():
        if name in CONTEXT or name == incident.metric or not len(series):
            continue
        found = window(series, incident.start_step, incident.peak_step)
        if found is not None and found.values.size:
            yield series, found


def _scan(series: Series, found: Window, first: int, stop: int) -> Scan:
    """The scan; a place that was finite and is so no longer stands out beyond all measure."""
    seen = scan(found, first, stop)
    values = found.values
    broken = np.isinf(values) if series.axes else ~np.isfinite(values)
    p = np.where(seen.sigma < 0, 1.0, seen.p) if series.name == "loss" else seen.p  # a loss that falls is no cause
    new = broken[first:stop].any(axis=0) & ~broken[:first].any(axis=0)
    onset = np.where(new, first + np.argmax(broken[first:stop], axis=0), seen.onset)
    return Scan(np.where(new, 0.0, p), onset, np.where(new, np.inf, seen.sigma), np.where(new, np.inf, seen.shift))


def _moved(run: Run, incident: Incident, looked: list[_Looked]) -> list[Movement]:
    """One movement for each series of which some place survives the control."""
    if not looked:
        return []
    from scipy.stats import false_discovery_control  # a second to import, and only incidents need it

    adjusted = false_discovery_control(np.concatenate([each.scan.p for each in looked]))
    ends = np.cumsum([len(each.scan.p) for each in looked])[:-1]
    kept = [np.flatnonzero(q <= RATE) for q in np.split(adjusted, ends)]
    return [_movement(run, incident, each, places) for each, places in zip(looked, kept, strict=True) if len(places)]


def _movement(run: Run, incident: Incident, looked: _Looked, places: np.ndarray) -> Movement:
    found, scanned = looked.window, looked.scan
    best = min(places.tolist(), key=lambda i: (int(scanned.onset[i]), -abs(float(scanned.sigma[i]))))
    onset = int(scanned.onset[best])
    column, step = found.values[:, best], int(found.steps[onset])
    index = tuple(int(i) for i in np.unravel_index(best, found.shape)) if found.shape else ()
    before, after = _levels(column, onset, float(scanned.shift[best]))
    return Movement(
        looked.series.name, place(run, looked.series, index), step, incident.start_step - step,
        int(step - found.steps[onset - 1]) if onset else 0, float(scanned.sigma[best]), before, after,
        (len(places), found.values.shape[1]),
    )


def _levels(column: np.ndarray, onset: int, shift: float) -> tuple[float, float]:
    """The level before, and the extreme value since on the side of the shift."""
    past = column[max(0, onset - BEFORE) : onset]
    past = past[np.isfinite(past)]
    since = column[onset:]
    before = float(np.median(past)) if len(past) else float("nan")
    if not np.isfinite(shift):
        return before, float(since[~np.isfinite(since)][0])
    return before, float(np.nanmax(since) if shift > 0 else np.nanmin(since))
