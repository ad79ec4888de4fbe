"""The suspect cold-optimizer."""

from __future__ import annotations

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect


@suspect()
def cold_optimizer(case: Case) -> Opinion:
    """Training was resumed without the optimizer's state, so Adam's moments began at zero again.

    ## Speaks for it
    - A resume just before the incident, and `update_rms` of exactly 1.0 in its first step, then decaying.
    - A loss that jumps a few steps after the resume and comes down over hundreds.

    ## Speaks against it
    - No resume. Updates that are as large after the resume as before.

    ## Evidence
    - With bias correction the first step of Adam is g/|g|, of size 1: <https://arxiv.org/abs/1412.6980>.

    ## Settle it
    Look into the checkpoint: does it hold `exp_avg_sq`, and is it loaded? Compare its norm before saving and after loading.

    ## Remedy
    Save and restore the optimizer's state; where it is lost, warm the learning rate up again.
    """
    scales, fired = Scales(0.04), case.said("SL306")
    resumes = case.context.of("resume")
    scales.pro_first(STRONG, fired)
    scales.pro_first(STRONG, resumes)
    scales.con(DECISIVE, "the record shows no resume near it", not resumes and not fired)
    looked = resumes and case.run.why_missing("update_rms") is None
    scales.con(STRONG, "update_rms was not 1 after the resume", looked and not fired)
    grew = case.incident.kind in ("spike", "divergence", "level_shift", "nonfinite")
    scales.pro(WEAK, "the loss rose after it", resumes and grew and not case.leapt)
    scales.con(FAIR, "the loss was high at the first point already, before any step was taken", resumes and case.leapt and case.gap == 1 and not fired)
    return scales.opinion("Load the checkpoint and look at the norm of exp_avg_sq: zero or missing settles it, in a minute and without training.")
