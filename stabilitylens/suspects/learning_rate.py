"""The suspect learning-rate."""

from __future__ import annotations

import numpy as np

from stabilitylens.suspects._case import SAMPLES, SOON, Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: a rise by this factor is none that a schedule means to make. *Heuristic*.
BROKEN = 1.5
#: a learning rate near the highest that the run saw, and one far below it. *Heuristic*.
NEAR, BELOW = 0.8, 0.5
#: points at this learning rate or a higher one that show that the run stands it. *Heuristic*.
STOOD = 200


@suspect()
def learning_rate(case: Case) -> Opinion:
    """The learning rate was too high for the model as it was then, or the schedule broke.

    ## Speaks for it
    - `lr` rose by half or more just before the incident: a schedule that was restarted, resumed wrongly, or mistyped.
    - The incident came at the highest learning rate of the run, soon after it was reached; it did not come back.
    - Updates grew before the loss did.

    ## Speaks against it
    - A learning rate of 0. The loss leapt while the learning rate was what it had been for hundreds of steps, or far below its peak.

    ## Evidence
    - At learning rates above what a model stands, attention and output logits grow first: <https://arxiv.org/abs/2309.14322>.
    - Adam is stable while the preconditioned sharpness stays below 38 over the learning rate (β1 = 0.9):
      <https://arxiv.org/abs/2207.14484>.

    ## Settle it
    Go on from the last checkpoint before the incident with the same data and the learning rate from before, or a third of
    it, for as many steps as the incident took.

    ## Remedy
    Repair the schedule. If it did what it should: a lower peak, a longer warm-up, or QK-Norm where attention logits grow.
    """
    scales, step, lr = Scales(0.12), case.incident.start_step, case.lr
    broken = [jump for jump in case.lr_jumps if (jump.size or 0) >= BROKEN]
    near = bool(broken) and step - broken[0].step <= max(SOON, SAMPLES * case.gap)
    scales.pro_first(DECISIVE if near else STRONG, broken)
    if lr is None:
        scales.con(0.0, "lr was not recorded")
    elif lr == 0 and not broken:
        scales.con(DECISIVE, "lr was 0: no weight could move")
    elif not case.lr_jumps:
        _steady(case, scales, lr)
    updates = [m for m in case.early_movers if m.metric in ("update_ratio", "update_rms") and m.after > m.before]
    scales.pro_first(FAIR, updates, "updates grew first: ")
    lasting = case.incident.kind in ("divergence", "level_shift", "nonfinite") or case.incident.recovery in ("none", "partial")
    scales.pro(WEAK, "the loss did not come back to where it was", lasting and case.incident.metric == "loss")
    scales.con(FAIR, "it was one log wide", case.incident.kind == "outlier")
    rate = "the learning rate from before the jump" if broken else "a third of the learning rate"
    return scales.opinion(
        f"From the last checkpoint before step {step}, the same data at {rate} until step {case.incident.peak_step}: if the "
        "loss stays down, it was the learning rate."
    )


def _steady(case: Case, scales: Scales, lr: float) -> None:
    """A learning rate that did not jump: is it the highest of the run, and how long had the run stood it?"""
    history = case.around("lr", before=10**12)
    history = history[np.isfinite(history)]
    highest, stood = float(np.max(history, initial=0.0)), int(np.sum(history >= 0.95 * lr))
    peak = case.context.of("lr_peak")
    scales.pro_first(FAIR, peak)
    scales.pro(WEAK, f"lr was {lr:.3g}, near the highest of the run so far", not peak and NEAR * highest <= lr and stood < STOOD)
    scales.con(FAIR, f"lr was {lr:.3g}, down from {highest:.3g}", lr < BELOW * highest)
    scales.con(FAIR, f"the run had stood lr {lr:.3g} or more for {stood} points", stood >= STOOD)
    scales.con(STRONG, "the loss leapt in one step while lr stayed as it was", case.leapt and case.gap == 1)
