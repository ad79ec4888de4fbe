"""The suspect masked-rows."""

from __future__ import annotations

import numpy as np

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, Opinion, Scales, suspect

#: how far back a sample of masked_rows counts, in steps. *Heuristic*.
LATELY = 50


@suspect()
def masked_rows(case: Case) -> Opinion:
    """A query row saw no key at all, and softmax over nothing is 0/0.

    ## Speaks for it
    - Rows without a key in a sampled step at the incident; a gradient norm that is NaN while the loss is finite.

    ## Speaks against it
    - `masked_rows` that was recorded as zero; loss and gradients that stayed finite.

    ## Evidence
    - All gradients of the projections become NaN while the loss stays finite, since the row is padding:
      <https://github.com/pytorch/pytorch/issues/41508>, <https://github.com/allenai/OLMo/issues/322>.

    ## Settle it
    Count rows of the batch's mask that have no key; it takes the batch alone.

    ## Remedy
    Let padding see itself, or use a large finite number in place of −inf; leave such rows out of the loss.
    """
    scales = Scales(0.05)
    scales.con(DECISIVE, "loss and gradients stayed finite", not case.nonfinite)
    rows = case.highest_lately("masked_rows", LATELY)
    scales.con(STRONG, "masked_rows was 0 in the samples before it", rows == 0)
    scales.pro(STRONG, f"{rows or 0:,.0f} query rows saw no key in a sampled step before it", rows)
    fired = [f.message for f in case.fired("SL204") if f.severity == "error"]
    scales.pro_first(FAIR, fired)
    loss = case.around("loss", after=0)
    hidden = case.incident.metric == "grad_norm" and len(loss) and np.isfinite(loss).all()
    scales.pro(FAIR, "the gradient norm was not finite while the loss was", hidden and case.nonfinite)
    scales.con(0.0, "masked_rows was not recorded", rows is None)
    return scales.opinion(f"Count the rows without a key in the mask of the batch of step {case.incident.start_step}.")
