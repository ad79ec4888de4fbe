import numpy as np

from stabilitylens.findings import Where
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._layers import number
from stabilitylens.rules._track import recorded, sampled, track

#: heuristic: share of points at the largest value from which on it is a ceiling
PINNED = 0.2
#: heuristic: how many times more often than any other value, so that coarse rounding is no ceiling
DISTINCT = 4.0
#: a norm that was clipped is the threshold up to the small number in its denominator
WITHIN = 1e-3


@rule(code="SL001", needs=("grad_norm",), since="0.1.0")
def post_clip_norm_logged(evidence: Evidence) -> list[Fired]:
    """The gradient norm in the log is the one before clipping.

    ## What it flags
    A `grad_norm` of which at least a fifth of all points is the same value within 0.1 %, and none is larger: a warning.
    That value has to be four times more frequent than any other, so that rounding is not taken for it.

    ## Why it matters
    A norm taken after clipping never exceeds the threshold. It hides every gradient spike, and rules and detectors that
    read it find nothing.

    ## Evidence
    - Whether a logged norm is the one before or after clipping is asked of trainers again and again, here of two that log
      the one before: <https://github.com/verl-project/verl/issues/2282>,
      <https://github.com/hiyouga/LlamaFactory/issues/7710>.
    - PyTorch's function returns the norm before clipping: <https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html>.

    The shares are heuristic.

    ## Example
    `grad_norm` is 1 at 74 % of 5,000 points and never larger, as if it were taken after clipping.

    ## Known false positives
    - A gradient that is normalised to a fixed length on purpose.

    ## Remedy
    Log what `clip_grad_norm_` returns, or call `lens.grads_ready()` between backward and clipping.
    """
    run = recorded(evidence)
    series = sampled(run, "grad_norm")
    if series.axes:
        raise Lacks("grad_norm of the whole model")
    norm = track(run, series, ())
    top = float(np.max(norm.values))
    if not np.isfinite(top) or top <= 0:
        return []
    pinned = np.abs(norm.values - top) <= WITHIN * top
    share = float(np.mean(pinned))
    _, counts = np.unique(norm.values[~pinned], return_counts=True)
    if share < PINNED or np.sum(pinned) < DISTINCT * max(counts, default=0):
        return []
    steps = norm.steps[pinned]
    return [
        Fired(
            "warning",
            f"grad_norm is {number(top)} at {100 * share:.0f} % of {len(norm.values):,} points and never larger, as if it "
            "were taken after clipping",
            observed=share, threshold=PINNED, where=Where(steps=(int(steps[0]), int(steps[-1]))), confidence=0.8,
        )
    ]
