"""The suspect stale-second-moment."""

from __future__ import annotations

import numpy as np

from stabilitylens.rules._track import place
from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: where loss spikes follow, and within how many steps (Wortsman et al. 2023, https://arxiv.org/abs/2304.13013)
RMS_HIGH, FOLLOWS = 2.3, 8
#: the ceiling of adam_rms, 1/√(1−β2), below which 2.3 says little, as in the rule stale-second-moment
CEILING = 3.0


@suspect()
def stale_second_moment(case: Case) -> Opinion:
    """Adam's second moment was far smaller than the gradient had become, so steps were far larger than meant.

    ## Speaks for it
    - `adam_rms` of a layer at 2.3 or more in the 8 steps before the incident, most often of the embedding.
    - A large β2 and a spike that recovers.

    ## Speaks against it
    - `adam_rms` that was recorded there and stayed below; a β2 so small that it cannot exceed 3.

    ## Evidence
    - Loss spikes follow 1 to 8 steps after it passes 2.3; StableAdamW divides the step by it:
      <https://arxiv.org/abs/2304.13013>.

    ## Settle it
    Repeat the steps with StableAdamW, or with β2 = 0.95, from the last checkpoint.

    ## Remedy
    A lower β2, update clipping as in StableAdamW, clipping nearer to the usual gradient norm.
    """
    scales, beta2, step = Scales(0.08), case.recipe.beta2, case.incident.start_step
    experiment = f"Repeat the steps up to {case.incident.peak_step} from the last checkpoint with StableAdamW, or with β2 = 0.95."
    if beta2 is not None and 0 <= beta2 < 1 and (1 - beta2) ** -0.5 < CEILING:
        scales.con(DECISIVE, f"with β2 = {beta2:g} adam_rms cannot exceed {(1 - beta2) ** -0.5:.2g}")
    highest = _highest(case)
    if highest is not None:
        rms, where, at = highest
        reached = rms >= RMS_HIGH
        scales.pro(STRONG, f"adam_rms of {where} was {rms:.3g} at step {at}, {step - at} steps before", reached and at < step)
        scales.con(0.0, f"adam_rms of {where} was {rms:.3g} in the same step, so that it cannot tell cause from effect", reached and at >= step)
        scales.con(STRONG, f"adam_rms was {rms:.3g} at most in the steps before", not reached)
    else:
        scales.con(0.0, f"adam_rms was not sampled in the {FOLLOWS} steps before")
    scales.pro(WEAK, f"β2 is {beta2}", beta2 is not None and beta2 >= 0.99)
    scales.pro(WEAK, "it is a spike that recovered", case.incident.kind == "spike" and case.incident.recovery == "fast")
    scales.con_first(STRONG, case.lr_jumps)
    scales.con(WEAK, "it was one log wide", case.incident.kind == "outlier")
    scales.con(FAIR, "the loss leapt in one step", case.leapt and case.gap == 1)
    return scales.opinion(experiment)


def _highest(case: Case) -> tuple[float, str, int] | None:
    """The largest adam_rms of the steps that a spike follows, its place and its step; steps before the incident first."""
    found: list[tuple[bool, float, str, int]] = []
    for name, series in case.run.series.items():
        if name.partition("/")[0] != "adam_rms":
            continue
        first, last = np.searchsorted(series.steps, (case.incident.start_step - FOLLOWS, case.incident.start_step + 1))
        for i in range(int(first), int(last)):
            row = np.asarray(series.values[i], dtype=np.float64)
            if not np.isnan(row).all():
                index = np.unravel_index(int(np.nanargmax(row)), row.shape)
                early = bool(series.steps[i] < case.incident.start_step)
                where = str(place(case.run, series, tuple(int(k) for k in index)))
                found.append((early and float(row[index]) >= RMS_HIGH, float(row[index]), where, int(series.steps[i])))
    return max(found)[1:] if found else None
