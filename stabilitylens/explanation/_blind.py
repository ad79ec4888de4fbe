"""What a log cannot show of an incident."""

from __future__ import annotations

import numpy as np

from stabilitylens.explanation._window import LEAST
from stabilitylens.incidents import Incident
from stabilitylens.run import Run, Series


def interval(series: Series, around: int | None = None) -> int:
    """The usual number of steps between two points, near a step or over the whole series; 1 where that is not known."""
    steps = series.steps
    if around is not None and len(steps) > 16:
        at = int(np.searchsorted(steps, around))
        steps = steps[max(0, at - 8) : at + 8]
    return max(1, int(np.median(np.diff(steps)))) if len(steps) > 1 else 1


def cannot_show(run: Run, incident: Incident, asked: int, kept: bool = False) -> list[str]:
    """Sentences on what is not in the log, the more important first.

    Args:
        run: the record.
        incident: what happened in it.
        asked: how many other series have enough samples before the incident.
        kept: whether the black box kept the batches.
    """
    batches = [] if kept else ["Which samples were in the batches is not recorded."]
    return [*_points(run, incident), *_layers(run, incident, asked), *_scalars(run), *batches]


def _points(run: Run, incident: Incident) -> list[str]:
    if "loss" not in run or not len(run["loss"]):
        return ["The log has no loss."]
    gap = interval(run["loss"], incident.start_step)
    said = []
    if gap > 1:
        said.append(f"The loss is logged every {gap} steps: a rise that took fewer looks like a leap, and one batch cannot be told from several.")
    if incident.start_index < LEAST:
        said.append(f"The record has {incident.start_index} points before it, too few to say what was usual.")
    return said


def _layers(run: Run, incident: Incident, asked: int) -> list[str]:
    layered = [s for s in run.series.values() if {"layer", "attention"} & set(s.axes)]
    if not layered:
        return ["There are no series by layer: where in the model it began is not in the log."]
    gap = min(interval(s, incident.start_step) for s in layered)
    said = [f"Layers are sampled every {gap} steps: what happened in between is not seen."] if gap > 1 else []
    if not asked:
        said.append("No other series has enough samples before it to be compared with.")
    return said


def _scalars(run: Run) -> list[str]:
    wanted = {"lr": "the learning rate", "grad_norm": "the gradient norm before clipping"}
    missing = [what for name, what in wanted.items() if run.why_missing(name) is not None]
    return [f"Not recorded: {' and '.join(missing)}."] if missing else []
