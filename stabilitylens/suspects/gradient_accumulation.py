"""The suspect gradient-accumulation."""

from __future__ import annotations

import numpy as np

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: the most micro-batches that are looked for, and how near to a whole number a factor must be. *Heuristic*.
MOST, EXACT = 64, 0.02
#: points on each side whose medians are compared, and the fewest of them. *Heuristic*.
SIDE, FEWEST = 25, 5


@suspect()
def gradient_accumulation(case: Case) -> Opinion:
    """Micro-batches were added up wrongly: not divided, divided twice, or their number changed.

    ## Speaks for it
    - The loss or the gradient norm stepped by a whole number, the number of micro-batches, and stayed there.
    - Tokens a step changed by the same factor.

    ## Speaks against it
    - No accumulation; a factor that is no whole number; a rise that came back.

    ## Evidence
    - A mean of means over micro-batches of unequal length is not the mean, in several trainers until late in 2024:
      <https://github.com/huggingface/transformers/pull/34191>.

    ## Settle it
    One batch in one piece and in micro-batches from the same weights: loss and gradient norm have to agree.

    ## Remedy
    Divide the summed loss by the tokens of the whole step, not each micro-batch by its own.
    """
    scales, accumulation = Scales(0.04), case.recipe.grad_accumulation
    scales.con(DECISIVE, "the recipe has no gradient accumulation", accumulation == 1)
    steps = {name: _factor(case, name) for name in ("loss", "grad_norm", "tokens")}
    for name in ("loss", "grad_norm"):
        factor = steps[name]
        scales.pro(STRONG, f"{name} stepped by a factor of {factor or 0:.3g} and stayed there", factor)
        scales.pro(FAIR, f"the recipe accumulates over {accumulation} micro-batches", factor and accumulation and round(max(factor, 1 / factor)) == accumulation)
    scales.pro(WEAK, "tokens of a step changed with it", steps["tokens"] and (steps["loss"] or steps["grad_norm"]))
    scales.con(FAIR, "neither loss nor gradient norm stepped by a whole number for good", not steps["loss"] and not steps["grad_norm"])
    scales.con(STRONG, f"{case.incident.metric} was not finite", case.nonfinite)
    scales.con_first(STRONG, case.lr_jumps)
    return scales.opinion("Compute loss and gradient norm of one batch in one piece and in micro-batches from the same weights; they have to agree.")


def _factor(case: Case, name: str) -> float | None:
    """The factor by which a scalar stepped at the incident for good, if it or its inverse is a whole number from 2 on."""
    series = case.run.series.get(name)
    if series is None or series.axes:
        return None
    values, at = np.asarray(series.values, dtype=np.float64), int(np.searchsorted(series.steps, case.incident.start_step))
    values = np.diff(values, prepend=np.nan) if name == "tokens" else values
    before, after = (side[np.isfinite(side) & (side > 0)] for side in (values[max(0, at - SIDE) : at], values[at : at + SIDE]))
    if min(len(before), len(after)) < FEWEST:
        return None
    with np.errstate(over="ignore"):
        factor = float(np.median(after) / np.median(before))
    if not 1 / (2 * MOST) < factor < 2 * MOST:
        return None
    whole = round(max(factor, 1 / factor))
    noise = float(np.std(np.log(after)) / np.sqrt(len(after)))
    exact = abs(max(factor, 1 / factor) / whole - 1) < max(EXACT, min(noise, 2 * EXACT))
    return factor if 2 <= whole <= MOST and exact and noise < 2 * EXACT else None
