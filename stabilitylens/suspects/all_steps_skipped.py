"""The suspect all-steps-skipped."""

from __future__ import annotations

import numpy as np

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: a share of steps skipped from which on nothing is learnt
MOSTLY = 0.9


@suspect()
def all_steps_skipped(case: Case) -> Opinion:
    """The optimizer took no step at all, or hardly any, so nothing could be learnt.

    ## Speaks for it
    - Nearly all steps of the incident were skipped; a loss scale at 1 or below; a learning rate of zero.

    ## Speaks against it
    - No step was skipped.

    ## Evidence
    - A scaler skips while gradients are not finite, whatever the reason: <https://arxiv.org/abs/1710.03740>.
    - DeepSpeed counts `skipped` beside the step; where both are equal nothing was ever learnt:
      <https://github.com/deepspeedai/DeepSpeed/issues/2911>.

    ## Settle it
    Compare one weight before and after a step.

    ## Remedy
    bf16; otherwise find the first layer whose gradient is not finite at a loss scale of 1.
    """
    scales, run, incident = Scales(0.04), case.run, case.incident
    skipped = np.array(sorted({event.step for event in run.events if event.kind == "step_skipped"}), dtype=np.int64)
    steps = case.loss.steps if case.loss is not None else skipped
    inside = steps[(steps >= incident.start_step) & (steps <= max(incident.end_step, incident.start_step + 1))]
    share = float(np.isin(inside, skipped).mean()) if len(inside) else 0.0
    scales.pro(DECISIVE, f"{share:.0%} of the steps from {incident.start_step} to {incident.end_step} were skipped", share >= MOSTLY)
    scales.pro(FAIR, f"{share:.0%} of its steps were skipped", 0.1 <= share < MOSTLY)
    fired = case.said("SL503")
    scales.pro_first(FAIR, fired)
    still = case.lr == 0
    scales.pro(STRONG, "lr was 0", still)
    told = "loss_scale" in run.series or bool(run.events)
    quiet = not len(skipped) and not fired and not still
    scales.con(DECISIVE if told else WEAK, "no step was skipped" if told else "the log tells of no skipped step", quiet)
    rose = incident.kind in ("spike", "outlier", "divergence") and incident.metric == "loss"
    scales.con(FAIR, "the loss moved, so weights or data did", rose)
    return scales.opinion("Compare one weight before and after a step, or look at the count of skipped steps.")
