"""What coincided with an incident: learning rate, loss scale, a resume, an epoch's edge, the period of a data shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stabilitylens.explanation._coincidence import Coincidence, reach, scalar
from stabilitylens.explanation._learning_rate import learning_rate
from stabilitylens.explanation._period import period
from stabilitylens.incidents import Incident
from stabilitylens.run import Run


def coincidences(run: Run, incident: Incident, incidents: Sequence[Incident] = ()) -> list[Coincidence]:
    """The events around an incident, by step; ``incidents`` are all of the run, among which a period shows."""
    first, last = reach(run, incident), incident.start_step
    end = incident.end_step if incident.kind == "steps_skipped" else incident.peak_step
    found = [
        *learning_rate(run, incident), *_scale(run, first, end), *_events(run, first, end),
        *_epochs(run, first, last), *period(run, incident, incidents),
    ]  # fmt: skip
    return sorted(found, key=lambda each: each.step)


def _scale(run: Run, first: int, last: int) -> Iterator[Coincidence]:
    steps, values = scalar(run, "loss_scale")
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
    steps, values = scalar(run, "epoch")
    crossed = np.floor(values[1:] + 1e-9) > np.floor(values[:-1] + 1e-9)
    for i in np.flatnonzero(crossed & (steps[1:] >= first) & (steps[1:] <= last)).tolist():
        epoch = float(np.floor(values[i + 1] + 1e-9))
        yield Coincidence("epoch_edge", int(steps[i + 1]), epoch, f"epoch {epoch:g} began by step {int(steps[i + 1])}")
