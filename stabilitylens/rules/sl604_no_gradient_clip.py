import math

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.findings import Where
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._recipe import stated
from stabilitylens.rules._track import sampled, track
from stabilitylens.run import Run

#: heuristic: ten times the share of one healthy run that was watched, at most 0.5 %
OFTEN = 0.05
#: heuristic: from here on the threshold, not the gradient, sets the length of most steps
MOSTLY = 0.5


@rule(code="SL604", needs=("recipe",), since="0.1.0")
def no_gradient_clip(evidence: Evidence) -> list[Fired]:
    """Gradients are clipped, and seldom.

    ## What it flags
    - A recipe that says that gradients are not clipped (a threshold of 0 or infinity): information.
    - A recorded run in whose second half more than 5 % of the steps had a `grad_norm` over the threshold:
      information; more than half of them: a warning. Both need `grad_norm` as it is before clipping.

    ## Why it matters
    Clipping bounds what one bad batch can do. It is no safety net for instability that builds up: the direction of a
    clipped step is as bad as before. Where most steps are clipped, the threshold has become part of the learning rate,
    and hides that gradients are growing.

    ## Evidence
    - Pascanu et al. bound the gradient's norm against explosions: <https://arxiv.org/abs/1211.5063>.
    - PaLM clipped at 1.0 and still saw about 20 loss spikes: <https://arxiv.org/abs/2204.02311>.

    A healthy run that was watched clipped at most 0.5 % of its steps. Both shares are heuristic.

    ## Example
    `grad_norm` was over the clip threshold of 1 in 38 % of the steps since step 5,000.

    ## Known false positives
    - Small models and small batches, whose gradient norm is over 1 by nature.
    - Optimizers that normalise the step themselves.

    ## Remedy
    A threshold of 1.0, taken before the optimizer's step. Where it is passed all the time: look at the learning rate and
    the data first, then raise the threshold to a few times the usual norm.
    """
    recipe = stated(evidence)
    limit = recipe.max_grad_norm
    if limit is None:
        raise Lacks("whether gradients are clipped: max_grad_norm in the recipe, 0 for not at all")
    if limit <= 0 or math.isinf(limit):
        return [Fired("info", "gradients are not clipped", limit, where=_span(evidence.run), confidence=0.6)]
    return _clipped(evidence.run, limit) if evidence.run is not None else []


def _span(run: Run | None) -> Where:
    if run is None or "loss" not in run or not len(run["loss"]):
        return Where()
    steps = run["loss"].steps
    return Where(steps=(int(steps[0]), int(steps[-1])))


def _clipped(run: Run, limit: float) -> list[Fired]:
    series = sampled(run, "grad_norm")
    if series.axes:
        raise Lacks("grad_norm of the whole model")
    norm = track(run, series, ())
    half = len(norm.values) // 2
    late: Float[ndarray, " step"] = norm.values[half:]
    share = float(np.mean(late > limit))
    if share <= OFTEN:
        return []
    first, last = int(norm.steps[half]), int(norm.steps[-1])
    return [
        Fired(
            "warning" if share > MOSTLY else "info",
            f"grad_norm was over the clip threshold of {limit:g} in {100 * share:.0f} % of the steps since step {first}",
            observed=share, threshold=MOSTLY if share > MOSTLY else OFTEN, where=Where(steps=(first, last)),
            confidence=0.6,
        )
    ]
