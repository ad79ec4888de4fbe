"""Case: one incident with all that is known around it, as suspects look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from stabilitylens.explanation import Coincidence, Context, Movement
from stabilitylens.explanation._blind import interval
from stabilitylens.findings import Finding
from stabilitylens.incidents import Incident
from stabilitylens.recipe import Recipe
from stabilitylens.run import Run, Series
from stabilitylens.suspects._suspect import Opinion

#: points before an incident whose median is the level before it. *Heuristic*.
LEVEL = 15
#: a share of the height that the first point has where the loss leapt. *Heuristic*.
LEAPT = 0.75
#: steps before an incident that are shortly before it, or samples where that is more; and a change that counts from
#: further back, as a factor. *Heuristic*.
SOON, SAMPLES, MUCH = 10, 3, 2.0
#: samples near an incident: from so many sampling intervals before its start. *Heuristic*.
NEAR = 2


def _factor(movement: Movement) -> float:
    """By how much a series changed, up or down; infinite where it has no meaning as a factor."""
    before, after = abs(movement.before), abs(movement.after)
    if not (before > 0 and after > 0 and np.isfinite(after)):
        return float("inf")
    return max(before / after, after / before)


@dataclass(frozen=True)
class Case:
    """One incident of a run, its context and the rules' findings on the run.

    Attributes:
        others: what the other suspects think, for those that are asked last.
        table: what counterfactuals came to on the incident; None where none were run.
        replay: what its replay found; None where there was none.
    """

    run: Run
    incident: Incident
    context: Context = field(default_factory=Context)
    findings: tuple[Finding, ...] = ()
    others: Mapping[str, Opinion] = field(default_factory=dict)
    table: Mapping[str, Any] | None = None
    replay: Mapping[str, Any] | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe; one of which nothing is known where there is none."""
        return self.run.header.recipe or Recipe()

    def fired(self, *codes: str) -> list[Finding]:
        """What fired of some rules, but for what began after the incident."""
        return [
            f for f in self.findings
            if f.code in codes and f.verdict == "fired" and (f.where.steps is None or f.where.steps[0] <= self.incident.end_step)
        ]

    def said(self, *codes: str) -> list[str]:
        """The messages of what fired."""
        return [finding.message for finding in self.fired(*codes)]

    @property
    def nonfinite(self) -> bool:
        """Whether the incident is a loss or a norm that was not finite."""
        return self.incident.kind == "nonfinite"

    @cached_property
    def loss(self) -> Series | None:
        """The scalar loss."""
        series = self.run["loss"] if "loss" in self.run else None
        return series if series is not None and not series.axes and len(series) else None

    @cached_property
    def gap(self) -> int:
        """Steps between two points of the loss."""
        return interval(self.loss, self.incident.start_step) if self.loss is not None else 1

    @cached_property
    def level(self) -> float:
        """The loss before the incident; NaN where it is not known."""
        before = self._losses(self.incident.start_step, LEVEL)
        return float(np.median(before)) if len(before) else float("nan")

    def _losses(self, step: int, points: int) -> Float[np.ndarray, " point"]:
        """The finite losses of the last points before a step."""
        if self.loss is None:
            return np.zeros(0)
        end = int(np.searchsorted(self.loss.steps, step))
        values = self.loss.values[max(0, end - points) : end]
        return np.asarray(values[np.isfinite(values)], dtype=np.float64)

    def around(self, name: str, before: int = 0, after: int = 0) -> Float[np.ndarray, " point"]:
        """A scalar's values from so many steps before the incident's start to so many after it."""
        series = self.run.series.get(name)
        if series is None or series.axes:
            return np.zeros(0)
        start = self.incident.start_step
        inside = (series.steps >= start - before) & (series.steps <= start + after)
        return np.asarray(series.values[inside], dtype=np.float64)

    @cached_property
    def leap(self) -> float:
        """The share of its height that the loss had at the incident's first point; NaN where that has no meaning."""
        if self.nonfinite or self.incident.metric != "loss" or self.loss is None:
            return float("nan")
        first, peak = (float(self.loss.values[i]) for i in (self.incident.start_index, self.incident.peak_index))
        return (first - self.level) / (peak - self.level) if peak > self.level else float("nan")

    @property
    def leapt(self) -> bool:
        """Whether the loss was up at once."""
        return self.leap >= LEAPT

    @cached_property
    def fell_back(self) -> float:
        """The largest share of its height that the loss lost between two points after its peak, to near the old level."""
        if self.loss is None or not np.isfinite(self.leap):
            return 0.0
        after = self.loss.values[self.incident.peak_index : self.incident.end_index + 2]
        height = float(self.loss.values[self.incident.peak_index]) - self.level
        back = (after[1:] - self.level) < 0.4 * height
        return float(np.nanmax(np.where(back, -np.diff(after) / height, 0.0), initial=0.0))

    @cached_property
    def lr_jumps(self) -> list[Coincidence]:
        """Rises of the learning rate shortly before the incident, the largest first."""
        jumps = [jump for jump in self.context.of("lr_jump") if jump.size is not None and jump.size > 1]
        return sorted(jumps, key=lambda jump: -(jump.size or 0.0))

    @cached_property
    def lr(self) -> float | None:
        """The learning rate at the incident."""
        values = self.around("lr", before=max(10, NEAR * self.gap))
        values = values[np.isfinite(values)]
        return float(values[-1]) if len(values) else None

    @cached_property
    def scale(self) -> float | None:
        """The loss scale at the incident or last before it; None where none is known."""
        values = self.around("loss_scale", before=10**12)
        values = values[np.isfinite(values) & (values > 0)]
        return float(values[-1]) if len(values) else None

    @property
    def resumed(self) -> bool:
        """Whether training was resumed shortly before."""
        return bool(self.context.of("resume"))

    @cached_property
    def early_movers(self) -> tuple[Movement, ...]:
        """What moved before the incident and may have led up to it: shortly before, or by much.

        Layers change at their own times as they learn; what moved a little, long before, is no cause.
        """
        return tuple(m for m in self.context.before if m.lead <= max(SOON, SAMPLES * m.within) or _factor(m) >= MUCH)

    @property
    def quiet_before(self) -> bool:
        """Whether enough series were asked, some of them by layer, and none moved before."""
        layered = any(s.axes for s in self.run.series.values())
        return not self.early_movers and layered and self.context.asked >= 5

    def lately(self, name: str, steps: int) -> Float[np.ndarray, "sample place"] | None:
        """Samples of an array or scalar from so many steps before the incident's start up to it; None without any."""
        if self.run.why_missing(name) is not None:
            return None
        series = self.run[name]
        first, last = np.searchsorted(series.steps, (self.incident.start_step - steps, self.incident.start_step + 1))
        values = np.asarray(series.values[int(first) : int(last)], dtype=np.float64)
        return values.reshape(len(values), -1) if len(values) else None

    def highest_lately(self, name: str, steps: int) -> float | None:
        """The largest of them, not observed ones left out; None without any."""
        values = self.lately(name, steps)
        return None if values is None or np.isnan(values).all() else float(np.nanmax(values))
