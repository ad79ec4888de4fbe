import numpy as np

from stabilitylens.findings import Where
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._track import recorded
from stabilitylens.run import Run

#: heuristic: points in a row that are more than a coincidence
POINTS = 2


@rule(code="SL003", needs=("loss",), since="0.1.0")
def nan_filtered_log(evidence: Evidence) -> list[Fired]:
    """The loss in the log is the loss, not what a filter left of it.

    ## What it flags
    A loss of exactly 0 at two points or more in a row while `grad_norm` is NaN there: an error.

    ## Why it matters
    Hugging Face's Trainer by default leaves NaN and infinite losses out of the mean that it logs. While a few steps are
    NaN the log looks healthy; once all are, the mean of nothing reads 0.0. The weights were lost earlier than the
    log shows, possibly by hundreds of steps.

    ## Evidence
    - The filter, `logging_nan_inf_filter`, is on by default: <https://github.com/huggingface/transformers/pull/13619>.
    - A step that was NaN does not show in the log then: <https://github.com/huggingface/trl/issues/6702>. Where all are,
      users see a loss of 0.0 with a gradient norm of NaN: <https://github.com/huggingface/trl/issues/1473>.

    ## Example
    The loss is exactly 0 and `grad_norm` is NaN at 240 points from step 1,500 on.

    ## Known false positives
    - A loss that is 0 by design, with gradient norms that were never logged; both have to be there.

    ## Remedy
    Set `logging_nan_inf_filter=False`, go back to a checkpoint well before the first such point, and look for the first
    NaN there.
    """
    run = recorded(evidence)
    steps, loss, norm = _side_by_side(run)
    if len(steps) < 8:
        raise Lacks(f"loss has {len(steps)} samples, fewer than the 8 needed")
    hit = np.flatnonzero((loss == 0) & np.isnan(norm))
    rows = np.split(hit, np.flatnonzero(np.diff(hit) > 1) + 1)
    longest = max(rows, key=len)
    if len(longest) < POINTS:
        return []
    first, last = int(steps[longest[0]]), int(steps[longest[-1]])
    return [
        Fired(
            "error",
            f"the loss is exactly 0 and grad_norm is NaN at {len(longest):,} points from step {first} on; the first "
            "NaN may be earlier than the log shows",
            observed=float(len(longest)), threshold=float(POINTS), where=Where(steps=(first, last)), confidence=0.9,
        )
    ]


def _side_by_side(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, loss and gradient norm at the steps that have both."""
    loss, norm = run["loss"], run.series.get("grad_norm")
    if loss.values.ndim != 1 or norm is None or norm.values.ndim != 1:
        raise Lacks("loss and grad_norm of each step")
    steps, a, b = np.intersect1d(loss.steps, norm.steps, return_indices=True)
    return steps, loss.values[a], norm.values[b]
