"""The suspect no-supervised-tokens."""

from __future__ import annotations

import numpy as np

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect


@suspect()
def no_supervised_tokens(case: Case) -> Opinion:
    """No token of the batch counted for the loss: a mean over nothing is NaN, its gradient is zero.

    ## Speaks for it
    - A loss of NaN, or of exactly 0, with a gradient norm of exactly 0; the next step is as if nothing had happened.

    ## Speaks against it
    - A gradient norm that is NaN, a loss that stays NaN, or one that is finite.

    ## Evidence
    - Cross-entropy over ignored targets alone: <https://github.com/pytorch/pytorch/issues/70348>,
      <https://github.com/pytorch/pytorch/issues/116349>.

    ## Settle it
    Count the labels of the batch that are not −100.

    ## Remedy
    Drop samples whose prompt fills the window; divide the summed loss by max(1, tokens). Nothing has to be rolled back.
    """
    scales, incident = Scales(0.05), case.incident
    possible = (case.nonfinite or incident.kind == "collapse") and incident.metric == "loss"
    scales.con(DECISIVE, "the loss was finite and not zero", not possible)
    norm = case.around("grad_norm")
    norm = norm if len(norm) else case.around("grad_norm_clipped")
    scales.pro(DECISIVE, "the gradient norm was exactly 0 in that step", possible and len(norm) and norm[0] == 0)
    scales.con(STRONG, "the gradient norm was not finite either, so weights were touched", len(norm) and not np.isfinite(norm[0]))
    scales.con(FAIR, f"the gradient norm was {norm[0] if len(norm) else 0:.3g}: something was learnt", len(norm) and np.isfinite(norm[0]) and norm[0] > 0)
    scales.pro(FAIR, "the loss was finite again by itself", case.nonfinite and incident.recovery in ("fast", "slow"))
    scales.con(FAIR, "it stayed so to the end of the record", incident.recovery == "none" and not (len(norm) and norm[0] == 0))
    scales.pro(WEAK, "only single steps are concerned", case.nonfinite and incident.width <= 3 and incident.recovery != "none")
    return scales.opinion(f"Count the labels of the batch of step {incident.start_step} that are not -100.")
