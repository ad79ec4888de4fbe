import math

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from stabilitylens.findings import Where
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._recipe import stated
from stabilitylens.rules._track import Track, sampled, track
from stabilitylens.run import INITIAL, Run

#: heuristic: ten times the share of one healthy run that was watched, at most 0.5 %
OFTEN = 0.05
#: heuristic: from here on the threshold, not the gradient, sets the length of most steps
MOSTLY = 0.5
#: heuristic: a coefficient nearer to 1 is the rounding of two norms, not a clipped gradient
UNCLIPPED = 0.999


@rule(code="SL604", needs=(), since="0.1.0")
def no_gradient_clip(evidence: Evidence) -> list[Fired]:
    """Gradients are clipped, and seldom.

    ## What it flags
    - A recipe that says that gradients are not clipped (a threshold of 0 or infinity): information.
    - A recorded run in whose second half more than 5 % of the steps were clipped: information; more than half of them: a
      warning. That is read off `clip_coef` where it was recorded, which needs no recipe; else off `grad_norm`, as it is
      before clipping, and the recipe's threshold.

    ## Why it matters
    Clipping bounds what one bad batch can do. It is no safety net for instability that builds up: the direction of a
    clipped step is as bad as before. Where most steps are clipped, the threshold has become part of the learning rate,
    and hides that gradients are growing.

    ## Evidence
    - Pascanu et al. bound the gradient's norm against explosions: <https://arxiv.org/abs/1211.5063>.
    - PaLM clipped at 1.0 and still saw about 20 loss spikes: <https://arxiv.org/abs/2204.02311>.

    A healthy run that was watched clipped at most 0.5 % of its steps. Both shares are heuristic.

    ## Example
    Gradients were clipped in 38 % of the steps since step 5,000, as clip_coef says.

    ## Known false positives
    - Small models and small batches, whose gradient norm is over 1 by nature.
    - Optimizers that normalise the step themselves.

    ## Remedy
    A threshold of 1.0, taken before the optimizer's step. Where it is passed all the time: look at the learning rate and
    the data first, then raise the threshold to a few times the usual norm.
    """
    if (measured := _measured(evidence.run)) is not None:
        return measured
    limit = stated(evidence).max_grad_norm
    if limit is None:
        raise Lacks("whether gradients are clipped: max_grad_norm in the recipe, 0 for not at all")
    if limit <= 0 or math.isinf(limit):
        return [Fired("info", "gradients are not clipped", limit, where=_span(evidence.run), confidence=0.6)]
    if evidence.run is None:
        return []
    norm = _whole(evidence.run, "grad_norm")
    return _share(norm, norm.values > limit, f"grad_norm was over the clip threshold of {limit:g}", "")


def _span(run: Run | None) -> Where:
    if run is None or "loss" not in run or not len(run["loss"]):
        return Where()
    steps = run["loss"].steps
    return Where(steps=(int(steps[0]), int(steps[-1])))


def _measured(run: Run | None) -> list[Fired] | None:
    """What clipping was seen to do; None where that was not recorded, or it never did anything."""
    if run is None or run.format == INITIAL:
        return None
    try:
        coefficient = _whole(run, "clip_coef")
    except Lacks:
        return None
    clipped = coefficient.values < UNCLIPPED
    return _share(coefficient, clipped, "gradients were clipped", ", as clip_coef says") if clipped.any() else None


def _whole(run: Run, name: str) -> Track:
    series = sampled(run, name)
    if series.axes:
        raise Lacks(f"{name} of the whole model")
    return track(run, series, ())


def _share(of: Track, clipped: Bool[ndarray, " step"], what: str, source: str) -> list[Fired]:
    """Nothing, or the share of clipped steps in the second half."""
    half = len(of.values) // 2
    share = float(np.mean(clipped[half:]))
    if share <= OFTEN:
        return []
    first, last = int(of.steps[half]), int(of.steps[-1])
    mostly = share > MOSTLY
    return [
        Fired(
            "warning" if mostly else "info", f"{what} in {100 * share:.0f} % of the steps since step {first}{source}",
            observed=share, threshold=MOSTLY if mostly else OFTEN, where=Where(steps=(first, last)), confidence=0.6,
        )
    ]
