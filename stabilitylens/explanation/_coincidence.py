"""What a coincidence is, and how near it has to be."""

from __future__ import annotations

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


def reach(run: Run, incident: Incident) -> int:
    """The first step that counts as shortly before an incident."""
    steps = run["loss"].steps if "loss" in run else np.zeros(0, dtype=np.int64)
    at = int(np.searchsorted(steps, incident.start_step)) - POINTS
    near = int(steps[max(0, at)]) if len(steps) else incident.start_step
    return min(near, incident.start_step - STEPS)


def scalar(run: Run, name: str, positive: bool = True) -> tuple[Int[np.ndarray, " step"], Float[np.ndarray, " step"]]:
    """Steps and values of a scalar where it is known, and positive if it has to be."""
    series = run.series.get(name)
    if series is None or series.axes:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    known = np.isfinite(series.values)
    known = known & (series.values > 0) if positive else known
    return series.steps[known], np.asarray(series.values[known], dtype=np.float64)
