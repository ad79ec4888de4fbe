"""The skipped steps detector."""

from __future__ import annotations

import numpy as np

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.run import Run

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
    first, last = group[0], group[-1]
    steps = run["loss"].steps if "loss" in run else np.array(group)
    at = [int(np.clip(np.searchsorted(steps, step), 0, len(steps) - 1)) for step in (first, last)]
    return Incident(
        kind="steps_skipped",
        metric="steps_skipped",
        start_step=first,
        end_step=last,
        start_index=at[0],
        end_index=at[1],
        peak_step=first,
        peak_index=at[0],
        width=len(group),
        magnitude=float("nan"),
        recovery=None,
        cost_steps=len(group),
        severity="warning",
        confidence=1.0,
        explanation=f"{len(group)} optimizer steps were skipped between step {first} and step {last}.",
    )


@detector
def steps_skipped(run: Run) -> list[Incident]:
    """Optimizer steps were skipped again and again, as a gradient scaler does on overflow.

    The first few skips of a scaler that looks for its scale are healthy and not reported.
    """
    skipped = sorted({event.step for event in run.events if event.kind == "step_skipped"})
    return [_incident(run, group) for group in _groups(skipped) if len(group) >= REPEATED]
