"""The suspect logging-artefact."""

from __future__ import annotations

import numpy as np

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: a loss as high as the first of the run, give or take this share, may be the first of another. *Heuristic*.
AS_AT_START = 0.03


@suspect()
def logging_artefact(case: Case) -> Opinion:
    """The log is not what happened: a filter hid NaN, a mean was taken over nothing, or two runs share the file.

    ## Speaks for it
    - A loss of exactly 0 with a gradient norm of NaN: Hugging Face's filter replaces NaN, and the mean of nothing reads 0.
    - The loss is where the run began: another run was written into the same file.
    - A gradient norm that follows the loss scale, or is pinned at the clip threshold.

    ## Speaks against it
    - Other series moved with the loss.

    ## Evidence
    - `logging_nan_inf_filter` is on by default: <https://github.com/huggingface/transformers/pull/13619>; what is left of
      it: <https://github.com/huggingface/trl/issues/6702>.

    ## Settle it
    Log the loss of each step itself, unfiltered, over the same steps.

    ## Remedy
    `logging_nan_inf_filter=False`; a folder of its own for each run. The first NaN may be earlier than the log shows.
    """
    scales, incident = Scales(0.04), case.incident
    filtered = case.said("SL003")
    scales.pro_first(DECISIVE, filtered)
    scales.pro(FAIR, "the loss is exactly 0, which no mean of cross-entropies is", incident.kind == "collapse")
    norm = case.around("grad_norm", after=case.gap)
    scales.con(FAIR, "the gradient norm is finite there", incident.kind == "collapse" and len(norm) and np.isfinite(norm).all() and norm[0] > 0)
    scaled = case.said("SL001", "SL002")
    scales.pro_first(STRONG, scaled if incident.metric != "loss" else [])
    again = _begins_again(case)
    scales.pro(FAIR, f"the loss went back to {again or 0:.3g}, where the run began", again)
    scales.pro_first(WEAK, case.run.notes if again else [], "the reader mended the file: ")
    together = [m for m in case.context.moved if m.metric != "loss" and not filtered]
    scales.con_first(FAIR, together, "another series moved too: ")
    scales.con(FAIR, "no trace of a filter, a restart or a scaled value is in the log", not filtered and not scaled and not again and incident.kind != "collapse")
    return scales.opinion(f"Log the unfiltered loss of each step, from the last checkpoint before {incident.start_step} on.")


def _begins_again(case: Case) -> float | None:
    """The peak where it is what the record began with, and the level before was far below."""
    loss = case.loss
    if loss is None or case.incident.metric != "loss" or case.nonfinite or case.incident.start_index < 5:
        return None
    first, peak = float(loss.values[0]), float(loss.values[case.incident.peak_index])
    return peak if first > 0 and abs(peak - first) < AS_AT_START * first and case.level < 0.75 * first else None
