"""The skipped steps detector."""

from __future__ import annotations

import numpy as np

from stabilitylens.findings import Severity
from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import plain
from stabilitylens.run import Run, Series

#: skipped steps with at most this many others between them are one event. *Heuristic*: a loss scale that is
#: halved too often settles within a few steps.
JOIN = 20
#: a scaler that finds its scale skips a few steps; fewer than this in one event are not worth a word. *Heuristic*:
#: torch.amp.GradScaler starts at 65,536 and is down to 1,024 after six.
FEW = 6
#: this many at the very start are still the search for the scale, and no fault. *Heuristic*: Megatron starts at 2^32,
#: and is down to 1,024 after 22 halvings.
SEARCH = 22


def _groups(steps: list[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for step in steps:
        if groups and step - groups[-1][-1] <= JOIN:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _counted(run: Run) -> list[int]:
    """The steps that were skipped; skips that the log told apart only by their loss scale count one by one."""
    told = {(event.step, event.text) for event in run.events if event.kind == "step_skipped"}
    return sorted(step for step, _ in told)


def _is_search(run: Run, group: list[int]) -> bool:
    """Whether these are the first steps of a record that goes on, or of one too short to say."""
    steps = run["loss"].steps if "loss" in run and len(run["loss"]) else np.array(group)
    opening = group[0] <= max(JOIN, int(steps[0]))
    return opening and len(group) <= SEARCH and group[-1] < max(int(steps[-1]), group[0] + SEARCH)


def _incident(run: Run, group: list[int]) -> Incident:
    series = run["loss"] if "loss" in run and len(run["loss"]) else None
    series = series or Series("step", np.unique(group), np.unique(group).astype(np.float64))
    first, last = (int(np.clip(np.searchsorted(series.steps, step), 0, len(series) - 1)) for step in (group[0], group[-1]))
    severity: Severity = "info" if _is_search(run, group) else "warning"
    place = f"between step {group[0]} and step {group[-1]}" if group[-1] > group[0] else f"at step {group[0]}"
    told = f"{len(group)} optimizer steps were skipped {place}"
    told += ", at the start, as a gradient scaler does that looks for its scale." if severity == "info" else "."
    return plain(
        series, "steps_skipped", "steps_skipped", first, last, severity, told, width=len(group), cost_steps=len(group)
    )


@detector
def steps_skipped(run: Run) -> list[Incident]:
    """Optimizer steps were skipped again and again, as a gradient scaler does on overflow.

    A few are not reported; more at the very start are for information, since a scaler looks for its scale there.
    """
    return [_incident(run, group) for group in _groups(_counted(run)) if len(group) >= FEW]
