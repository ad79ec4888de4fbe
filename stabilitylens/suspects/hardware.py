"""The suspect hardware."""

from __future__ import annotations

import numpy as np

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: one place that moves by so many standard errors while none of its kind does. *Heuristic*.
ALONE = 30.0
#: a step this many times as long as usual. *Heuristic*.
SLOW = 3.0


@suspect()
def hardware(case: Case) -> Opinion:
    """A device computed wrongly: silent corruption, a failing memory, a network that dropped something.

    ## Speaks for it
    - One place of many leapt by itself, by a factor that no gradient makes, and nothing led up to it.
    - A step that took far longer, at the same time. A value that was not finite in bf16 once, and never again.

    ## Speaks against it
    - An ordinary cause that explains it. Steps of the usual length, and many layers that moved together.

    ## Evidence
    - Meta's Llama 3 run had 419 unexpected interruptions in 54 days, most of them hardware, six of them silent corruption:
      <https://arxiv.org/abs/2407.21783>.

    ## Settle it
    Repeat the same steps from the same checkpoint with the same data on another machine: what is the hardware's does
    not come back. What does come back to the bit is not the hardware's.

    ## Remedy
    Take the machine out, run its diagnostics, go back to the checkpoint before.
    """
    scales, incident = Scales(0.03), case.incident
    alone = [m for m in case.context.moved if m.places[1] >= 4 and m.places[0] == 1 and abs(m.sigma) > ALONE and m.metric in ("param_norm", "resid_absmax")]
    scales.pro_first(FAIR, alone, "one place moved alone: ")
    times = case.around("step_time", before=100)
    slow = len(times) > 20 and times[-1] > SLOW * float(np.nanmedian(times))
    scales.pro(FAIR, f"the step took {times[-1] if len(times) else 0:.3g} s, usually {np.nanmedian(times) if len(times) else 0:.3g}", slow)
    scales.con(WEAK, "the step took no longer than usual", len(times) > 20 and not slow)
    once = case.nonfinite and incident.recovery == "fast" and "loss_scale" not in case.run.series and case.recipe.precision in ("bf16", "fp32")
    scales.pro(FAIR, f"{incident.metric} was not finite once in {case.recipe.precision} and finite after it", once)
    scales.con_first(STRONG, case.lr_jumps)
    many = [m for m in case.context.moved if m.places[0] > 1]
    scales.con_first(WEAK, many, "many places moved together: ")
    return scales.opinion(f"Repeat the steps up to {incident.peak_step} from the same checkpoint and data on another machine: what is the hardware's does not come back.")
