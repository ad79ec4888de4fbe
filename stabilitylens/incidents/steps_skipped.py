"""The skipped steps detector."""

from __future__ import annotations

import numpy as np

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import plain
from stabilitylens.run import Run, Series

#: skipped steps with at most this many others between them are one event. *Heuristic*: a loss scale that is
#: halved too often settles within a few steps.
JOIN = 20
#: a scaler that finds its scale skips a few steps and is healthy; this many in one event are not. *Heuristic*:
#: from 65,536 the scale passes 1 after 16 halvings.
REPEATED = 16


def _groups(steps: list[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for step in steps:
        if groups and step - groups[-1][-1] <= JOIN:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _incident(run: Run, group: list[int]) -> Incident:
    series = run["loss"] if "loss" in run else Series("step", np.array(group), np.array(group, dtype=np.float64))
    first, last = (int(np.clip(np.searchsorted(series.steps, step), 0, len(series) - 1)) for step in (group[0], group[-1]))
    told = f"{len(group)} optimizer steps were skipped between step {group[0]} and step {group[-1]}."
    return plain(series, "steps_skipped", "steps_skipped", first, last, "warning", told, width=len(group), cost_steps=len(group))


@detector
def steps_skipped(run: Run) -> list[Incident]:
    """Optimizer steps were skipped again and again, as a gradient scaler does on overflow.

    The first few skips of a scaler that looks for its scale are healthy and not reported.
    """
    skipped = sorted({event.step for event in run.events if event.kind == "step_skipped"})
    return [_incident(run, group) for group in _groups(skipped) if len(group) >= REPEATED]
