"""The suspect data-order."""

from __future__ import annotations

import numpy as np

from stabilitylens.explanation import reach
from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: steps after a resume in which replayed data show as a loss that is too low. *Heuristic*.
REPLAY = 500
#: shares of the record that lie near an epoch's edge: below the first a coincidence says much, above the second
#: nothing. *Heuristic*.
RARE, OFTEN = 0.05, 0.25


@suspect()
def data_order(case: Case) -> Opinion:
    """The order of the data changed or came round again: an epoch's edge, a shard, a replay after a resume.

    ## Speaks for it
    - The edge of an epoch, a resume, or the period of a shard coincides with it.
    - The loss was too low after a resume and then stepped up to a new level: data were replayed.
    - The training loss moved and the evaluation loss did not.

    ## Speaks against it
    - None of these is near.

    ## Evidence
    - Stairs at the edges of epochs, and what they are: <https://github.com/huggingface/transformers/issues/18730>.
    - Loss patterns of replayed and badly shuffled data: <https://github.com/stas00/ml-engineering>.

    ## Settle it
    Print the sample ids around the incident and look for them earlier in the run.

    ## Remedy
    Restore the sampler's state with the checkpoint; shuffle over shards; weigh sources within each batch.
    """
    scales, context = Scales(0.06), case.context
    edges, periods, resumes = context.of("epoch_edge"), context.of("period"), context.of("resume")
    scales.pro_first(_surprise(case), edges)
    scales.pro_first(DECISIVE, periods)
    scales.pro_first(FAIR, resumes)
    replayed = _replayed(case)
    scales.pro(FAIR, f"the loss was {1 - replayed:.1%} lower from a resume until it stepped up", replayed < 0.97)
    near = bool(edges or periods or resumes or replayed < 0.97)
    known = "epoch" in case.run.series
    scales.con(DECISIVE, "no epoch edge, resume or period of the data is near it", not near and known)
    scales.con(FAIR, "no resume or period of the data is near it; epochs are not in the log", not near and not known)
    flat = _evaluation_flat(case)
    scales.pro(WEAK, f"{flat} stayed as it was", flat)
    scales.con(STRONG, f"{case.incident.metric} was not finite", case.nonfinite)
    scales.con_first(STRONG, case.lr_jumps)
    return scales.opinion(f"Print the sample ids of steps {case.incident.start_step} to {case.incident.end_step} and look for them earlier in the run.")


def _surprise(case: Case) -> float:
    """What an epoch's edge weighs: nothing where some edge is near most points of the log."""
    epochs, incident = case.run.series.get("epoch"), case.incident
    if epochs is None or not np.isfinite(epochs.values).any():
        return 0.0
    edges = float(np.nanmax(epochs.values) - np.nanmin(epochs.values))
    near = edges * (incident.start_step - reach(case.run, incident)) / max(1, int(epochs.steps[-1] - epochs.steps[0]))
    return STRONG if near < RARE else FAIR if near < OFTEN else 0.0


def _replayed(case: Case) -> float:
    """The loss between a resume and this incident over that before the resume; 1 where there is nothing to compare."""
    if case.loss is None or case.incident.kind not in ("level_shift", "spike", "divergence"):
        return 1.0
    start = case.incident.start_step
    resumes = [event.step for event in case.run.events if event.kind == "resume" and start - REPLAY <= event.step < start]
    if not resumes:
        return 1.0
    steps, values = case.loss.steps, case.loss.values
    sides = values[(steps >= resumes[-1]) & (steps < start)], values[steps < resumes[-1]][-50:]
    between, before = (side[np.isfinite(side) & (side > 0)] for side in sides)
    if len(between) < 5 or len(before) < 5:
        return 1.0
    return float(np.median(between) / np.median(before))


def _evaluation_flat(case: Case) -> str:
    """The name of an evaluation loss with points around a lasting rise that did not rise with it."""
    if case.incident.kind not in ("level_shift", "drift"):
        return ""
    for name, series in case.run.series.items():
        if not series.axes and "loss" in name and any(word in name for word in ("eval", "val", "test")):
            before, after = (series.values[side] for side in (series.steps < case.incident.start_step, series.steps > case.incident.start_step))
            before, after = before[np.isfinite(before)], after[np.isfinite(after)]
            if len(before) and len(after) and np.min(after) - before[-1] <= 0.005 * abs(before[-1]):
                return name
    return ""
