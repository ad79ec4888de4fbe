"""What coincided with an incident: learning rate, loss scale, a resume, an epoch's edge, the period of a data shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.incidents import Incident
from stabilitylens.run import Run

CoincidenceKind = Literal["lr_jump", "lr_peak", "loss_scale", "steps_skipped", "resume", "epoch_edge", "period"]

#: an event may come this many steps before the incident, or this many points where they lie further apart. *Heuristic*:
#: loss spikes follow an oversized update by 1 to 8 steps, see the rule stale-second-moment.
STEPS, POINTS = 10, 2
#: a learning rate jumps where it changes by this factor between two points, *heuristic*,
JUMP = 1.2
#: and by this many times the usual change of its surroundings, and those next to it: a warm-up doubles in its first
#: steps. *Heuristic*.
UNUSUAL, STEEPER = 4.0, 2.0
#: incidents that come at one interval, so many of them and give or take this share of it. *Heuristic*.
INTERVALS, REGULAR = 3, 0.05


@dataclass(frozen=True)
class Coincidence:
    """An event at or shortly before an incident.

    Attributes:
        size: the factor of a learning rate or loss scale, how many steps were skipped, the number of the epoch, or
            the period in steps; None for a resume.
        text: one clause for a person.
    """

    kind: CoincidenceKind
    step: int
    size: float | None
    text: str

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The coincidence as plain data, keys as in the JSON contract."""
        return asdict(self)


def coincidences(run: Run, incident: Incident, incidents: Sequence[Incident] = ()) -> list[Coincidence]:
    """The events around an incident, by step; ``incidents`` are all of the run, among which a period shows."""
    first, last = reach(run, incident), incident.start_step
    found = [
        *_lr(run, first, last), *_scale(run, first, incident.peak_step), *_events(run, first, incident.peak_step),
        *_epochs(run, first, last), *_period(incident, incidents),
    ]  # fmt: skip
    return sorted(found, key=lambda each: each.step)


def reach(run: Run, incident: Incident) -> int:
    """The first step that counts as shortly before an incident."""
    steps = run["loss"].steps if "loss" in run else np.zeros(0, dtype=np.int64)
    at = int(np.searchsorted(steps, incident.start_step)) - POINTS
    near = int(steps[max(0, at)]) if len(steps) else incident.start_step
    return min(near, incident.start_step - STEPS)


def _scalar(run: Run, name: str) -> tuple[Int[np.ndarray, " step"], Float[np.ndarray, " step"]]:
    """Steps and values of a positive scalar where it is known."""
    series = run.series.get(name)
    if series is None or series.axes:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    known = np.isfinite(series.values) & (series.values > 0)
    return series.steps[known], np.asarray(series.values[known], dtype=np.float64)


def _lr(run: Run, first: int, last: int) -> Iterator[Coincidence]:
    steps, values = _scalar(run, "lr")
    changes = np.diff(np.log(values))
    for i in np.flatnonzero((steps[1:] >= first) & (steps[1:] <= last)).tolist():
        around = np.abs(np.delete(changes[max(0, i - 8) : i + 9], min(i, 8)))
        usual = float(np.median(around)) if len(around) else 0.0
        beside = float(np.max(np.abs(changes[[k for k in (i - 1, i + 1) if 0 <= k < len(changes)]]), initial=0.0))
        if abs(changes[i]) > max(np.log(JUMP), UNUSUAL * usual, STEEPER * beside):
            factor = float(np.exp(changes[i]))
            text = f"lr went from {values[i]:.3g} to {values[i + 1]:.3g} (× {factor:.3g}) at step {int(steps[i + 1])}"
            yield Coincidence("lr_jump", int(steps[i + 1]), factor, text)
    peak = int(np.argmax(values >= (1 - 1e-6) * values.max())) if len(values) else 0
    if 0 < peak and first <= steps[peak] <= last and changes[peak - 1] <= np.log(JUMP):
        yield Coincidence("lr_peak", int(steps[peak]), 1.0, f"lr reached its highest value, {values[peak]:.3g}, at step {int(steps[peak])}")


def _scale(run: Run, first: int, last: int) -> Iterator[Coincidence]:
    steps, values = _scalar(run, "loss_scale")
    for i in np.flatnonzero((steps[1:] >= first) & (steps[1:] <= last) & (np.diff(values) != 0)).tolist():
        text = f"loss_scale went from {values[i]:g} to {values[i + 1]:g} at step {int(steps[i + 1])}"
        yield Coincidence("loss_scale", int(steps[i + 1]), float(values[i + 1] / values[i]), text)


def _events(run: Run, first: int, last: int) -> Iterator[Coincidence]:
    inside = [event for event in run.events if first <= event.step <= last]
    for step in sorted({event.step for event in inside if event.kind == "resume"}):
        yield Coincidence("resume", step, None, f"training was resumed at step {step}")
    skipped = sorted({event.step for event in inside if event.kind == "step_skipped"})
    if skipped:
        text = f"the optimizer skipped {len(skipped)} step{'s' * (len(skipped) > 1)} from step {skipped[0]} on"
        yield Coincidence("steps_skipped", skipped[0], float(len(skipped)), text)


def _epochs(run: Run, first: int, last: int) -> Iterator[Coincidence]:
    steps, values = _scalar(run, "epoch")
    crossed = np.floor(values[1:] + 1e-9) > np.floor(values[:-1] + 1e-9)
    for i in np.flatnonzero(crossed & (steps[1:] >= first) & (steps[1:] <= last)).tolist():
        epoch = float(np.floor(values[i + 1] + 1e-9))
        yield Coincidence("epoch_edge", int(steps[i + 1]), epoch, f"epoch {epoch:g} began by step {int(steps[i + 1])}")


def _period(incident: Incident, incidents: Sequence[Incident]) -> Iterator[Coincidence]:
    starts = np.unique([other.start_step for other in incidents if other.metric == incident.metric])
    apart = np.diff(starts)
    if len(apart) < INTERVALS or incident.start_step not in starts:
        return
    period = float(np.median(apart))
    times = apart / period
    if period > 1 and np.all(np.abs(times - np.round(times)) < REGULAR) and np.all(times > 0.5):
        text = f"{len(starts)} such incidents came at multiples of {period:g} steps, as the edges of an epoch or a shard do"
        yield Coincidence("period", incident.start_step, period, text)
