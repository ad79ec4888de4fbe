"""The non-finite detector."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import find_objects, label

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import FAST, plain
from stabilitylens.run import Run, Series

#: non-finite values with at most this many finite ones between them are one event. *Heuristic*.
JOIN = 10
#: a metric that is missing in this share of its rows, here and there, is logged on some rows only. *Heuristic*.
PADDED = 0.5
METRICS = ("loss", "grad_norm")


#: points below which NaNs are taken at their word (*heuristic*)
SHORT = 8


def _is_padding(series: Series) -> bool:
    """Whether the NaNs only fill rows on which the metric was not logged: in between, many, and no infinity."""
    values = series.values
    missing = np.isnan(values)
    if np.isinf(values).any() or missing.mean() < PADDED or missing.all():
        return False
    turns = int(np.sum(missing[1:] != missing[:-1]))
    return len(values) >= SHORT and turns >= min(4, len(values) // 2) and not missing[-JOIN:].all()


def _stretches(bad: np.ndarray) -> list[tuple[int, int]]:
    """First and last index of each event."""
    where = [(found[0].start, found[0].stop - 1) for found in find_objects(label(bad)[0])]
    joined: list[tuple[int, int]] = []
    for first, last in where:
        if joined and first - joined[-1][1] <= JOIN + 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def _got_over(run: Run, series: Series, bad: np.ndarray, first: int, last: int) -> bool:
    """Whether a gradient scaler skipped every step of a stretch, and the values are finite after it."""
    if "loss_scale" not in run or last == len(series) - 1:
        return False
    skipped = [event.step for event in run.events if event.kind == "step_skipped"]
    return bool(np.isin(series.steps[first : last + 1][bad[first : last + 1]], skipped).all())


def _incident(series: Series, metric: str, first: int, last: int) -> Incident:
    steps, ends = series.steps, last == len(series) - 1
    cost = int(steps[min(last + 1, len(steps) - 1)] - steps[first])
    what = "NaN" if np.isnan(series.values[first]) else "infinite"
    ending = "and stayed so to the end of the record" if ends else f"and was finite again after {cost} steps"
    return plain(
        series,
        metric,
        "nonfinite",
        first,
        last,
        "error" if metric == "loss" else "warning",
        f"{metric} became {what} at step {int(steps[first])} {ending}.",
        width=int(np.sum(~np.isfinite(series.values[first : last + 1]))),
        recovery="none" if ends else "fast" if last - first < FAST else "slow",
    )


@detector
def nonfinite(run: Run) -> list[Incident]:
    """The loss or the gradient norm was NaN or infinite; all other detectors leave those points out.

    NaN that merely fills the rows on which a metric was not logged is no incident, nor is a step that a gradient
    scaler skipped and got over: its gradients overflowed, which is how it finds its scale.
    """
    found = []
    for metric in METRICS:
        series = run[metric] if metric in run else None
        if series is None or series.values.ndim != 1 or not len(series) or _is_padding(series):
            continue
        bad = ~np.isfinite(series.values)
        found += [_incident(series, metric, *ends) for ends in _stretches(bad) if not _got_over(run, series, bad, *ends)]
    return found
