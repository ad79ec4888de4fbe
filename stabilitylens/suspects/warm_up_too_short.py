"""The suspect warm-up-too-short."""

from __future__ import annotations

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: warm-up advised for Adam in units of 1/(1-β2), as in the rule warm-up-too-short, and where β2 is not known, steps
ADVISED, UNKNOWN = 2.0, 2000
#: an incident later than this many advised warm-ups has another cause. *Heuristic*.
LATE = 2.0
#: in the first steps a warm-up itself multiplies the learning rate from step to step. *Heuristic*.
RAMP = 20


@suspect()
def warm_up_too_short(case: Case) -> Opinion:
    """The learning rate was up before Adam's second moment had been measured.

    ## Speaks for it
    - The incident falls into the first 2/(1−β2) steps or soon after, and the warm-up was shorter than that.
    - Post-LN without a warm-up.

    ## Speaks against it
    - An incident long after the start, or a warm-up as long as advised.

    ## Evidence
    - A linear warm-up over 2/(1−β2) steps does as well as tuned ones: <https://arxiv.org/abs/1910.04209>.
    - Post-LN has large gradients near the output at initialisation and needs warm-up: <https://arxiv.org/abs/2002.04745>.

    ## Settle it
    Start again with four times the warm-up; it costs as many steps as the incident was from the start.

    ## Remedy
    A longer warm-up, or a smaller β2: with 0.95, 40 steps are enough for the moment.
    """
    scales, recipe, step = Scales(0.05), case.recipe, case.incident.start_step
    advised = ADVISED / (1 - recipe.beta2) if recipe.beta2 is not None and recipe.beta2 < 1 else UNKNOWN
    first = int(case.loss.steps[0]) if case.loss is not None else 0
    age = step - (first if first > 1 and not case.resumed else 0)
    scales.con(STRONG + FAIR, f"it came {age:,} steps after the start; Adam's second moment is measured after {advised:,.0f}", age > LATE * advised)
    early = age <= LATE * advised
    scales.pro(FAIR, f"it came {age:,} steps after the start, and a warm-up of {advised:,.0f} is advised", early and recipe.beta2 is not None)
    short = recipe.warmup_steps is not None and recipe.warmup_steps < advised
    scales.pro(FAIR, f"the warm-up was {recipe.warmup_steps} steps", short and early)
    scales.con(FAIR, f"the warm-up was {recipe.warmup_steps} steps, as long as advised", recipe.warmup_steps is not None and not short)
    scales.pro_first(FAIR, case.said("SL601") if early else [])
    scales.con_first(STRONG, case.lr_jumps if age > RAMP else [])
    scales.con(FAIR, "the loss leapt in one step", case.leapt and case.gap == 1)
    scales.con(WEAK, "it was one log wide", case.incident.kind == "outlier")
    return scales.opinion(f"Start again with four times the warm-up, up to step {case.incident.peak_step}.")
