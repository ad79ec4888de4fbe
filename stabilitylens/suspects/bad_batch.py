"""The suspect bad-batch."""

from __future__ import annotations

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: a loss this many times the level before is more than one unusual text does. *Heuristic*.
FAR = 1.5
#: a first point below this share of the height is the foot of a rise. *Heuristic*.
FOOT = 0.6


@suspect()
def bad_batch(case: Case) -> Opinion:
    """A batch, or a stretch of them, was not what the model had learnt from: noise, wrong labels, another language.

    ## Speaks for it
    - The loss was up in full at once. A batch is measured before it changes a weight, so data leap, while what comes
      from the weights grows over steps.
    - It came down as abruptly: one log wide, or back at the old level within one step at the end of a stretch.
    - Nothing else moved before it, and the gradient norm rose in the same step.

    ## Speaks against it
    - A learning rate that jumped, a series that moved first, a rise over several points, a loss that is not finite.

    ## Evidence
    - In public logs a data outlier has a width of 1 at half height and is gone within 3 logs, where a recovered spike is 1
      to 6 wide and takes up to 25.
    - The authors of PaLM found that the batches around a spike cause none from another checkpoint, so that it takes data
      and weights together: <https://arxiv.org/abs/2204.02311>.

    ## Settle it
    Evaluate the loss of the same batch with the weights of an earlier checkpoint. High there too: it is the data.

    ## Remedy
    Look at the samples; filter what they have in common. Otherwise skip the batches and go on from the checkpoint before.
    """
    scales, incident = Scales(0.15), case.incident
    step = incident.start_step
    experiment = (
        f"Evaluate the loss of the batch of step {step} with the weights of the last checkpoint before it: if it is high there "
        "too, it is the data. No training is needed."
    )
    if case.nonfinite or incident.metric != "loss":
        scales.con(STRONG, f"it is a {incident.kind.replace('_', ' ')} of {incident.metric}; odd tokens and labels raise the loss and leave it finite")
        return scales.opinion(experiment)
    _shape(case, scales)
    moved = case.early_movers
    scales.pro(WEAK, f"none of {case.context.asked} other series moved before step {step}", case.quiet_before)
    scales.con_first(FAIR, moved, "something moved before it: ")
    scales.con_first(STRONG, case.lr_jumps)
    scales.con_first(STRONG, case.context.of("period"), "one batch does not come round: ")
    scales.con(FAIR, "training was resumed just before", case.resumed)
    return scales.opinion(experiment)


def _shape(case: Case, scales: Scales) -> None:
    """How the loss went up and came down, and the gradient with it."""
    incident, one_step = case.incident, case.gap == 1
    share = f"the loss was at {case.leap:.0%} of its height at its first point"
    scales.pro(FAIR if one_step else WEAK, share + ("" if one_step else f", {case.gap} steps after the one before"), case.leapt)
    scales.con(FAIR, f"{share}: it grew from point to point", case.leap < FOOT)
    scales.pro(FAIR, "it was one log wide", incident.kind == "outlier")
    stretch = incident.end_index - incident.peak_index >= 3 and case.fell_back >= 0.3
    scales.pro(FAIR, f"it fell back in one step, by {case.fell_back:.0%} of its height, as where a stretch of data ends", stretch)
    scales.con(FAIR, "it had not come back by the end of the record", incident.recovery == "none")
    peak = float(case.loss.values[incident.peak_index]) if case.loss is not None and incident.peak_index < len(case.loss) else float("nan")
    scales.pro(WEAK, f"its peak is over {FAR:g} times the level before", 0 < FAR * case.level < peak)
    together = [m for m in case.context.of_metric("grad_norm", "grad_norm_clipped") if m.step == incident.start_step]
    scales.pro_first(WEAK, together, "the gradient norm rose in the same step: ")
