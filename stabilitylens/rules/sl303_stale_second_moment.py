from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._layers import at, number, per_layer
from stabilitylens.rules._track import RECENT, arrays, recorded, track
from stabilitylens.run import Run, Series

#: where Wortsman et al. see loss spikes follow (https://arxiv.org/abs/2304.13013)
RMS_HIGH = 2.3
#: heuristic: under this ceiling, 1/√(1−β2), a value of 2.3 says too little
CEILING = 3.0


@rule(code="SL303", needs=("adam_rms", "recipe"), since="0.1.0", evidence_scale=1e9)
def stale_second_moment(evidence: Evidence) -> list[Fired]:
    """Adam's second moment keeps up with the gradient, so that no step is far larger than meant.

    ## What it flags
    A block, or a module outside the blocks, whose `adam_rms` reached 2.3 at any sampled step: a warning.
    Not evaluated where β2 is so small that `adam_rms` cannot exceed 3: its ceiling is 1/√(1−β2), which
    is 4.5 for β2 = 0.95 and 2.3 for β2 = 0.811.

    ## Why it matters
    Adam's step assumes that the second moment fits the present gradient. When the gradient grows k-fold between
    one step and the next, `adam_rms` becomes k/√(β2 + (1−β2)k²): the step is that much too large. Where the
    gradient stays large, it takes hundreds of steps with β2 = 0.999 until the moment has caught up.

    ## Evidence
    - Wortsman et al. find that loss spikes follow 1 to 8 steps after this value passes 2.3, and
      propose to divide the step by it (StableAdamW): <https://arxiv.org/abs/2304.13013>.
    - The formula above is exact for a steady gradient that jumps; it crosses 2.3 at k = 2.61, 2.35 and 2.30 for β2 =
      0.95, 0.99 and 0.999.

    The threshold is theirs; not evaluating under a ceiling of 3 is heuristic.

    ## Example
    `adam_rms` of embedding reached 3.4 at step 1,210, and was 2.3 or more in 3 of 400 samples.

    ## Known false positives
    - One unusual batch: the step is too large and the loss recovers at once.
    - Embedding rows that return after a long silence, most of all with large β2.
    - The first steps after a resume that did not restore the optimizer's state.

    ## Remedy
    Lower β2 (0.95 instead of 0.999), or StableAdamW, which divides the learning rate by this value
    where it is above 1. Clip the gradient norm closer to its usual size.
    """
    run = recorded(evidence)
    _check_ceiling(evidence)
    found = [f for series in arrays(run, "adam_rms", RECENT) for f in _late(run, series)]
    return per_layer(sorted(found, key=lambda f: -(f.observed or 0.0)))


def _check_ceiling(evidence: Evidence) -> None:
    beta2 = evidence.recipe.beta2 if evidence.recipe is not None else None
    if beta2 is None:
        raise Lacks("the optimizer's beta2 is not known")
    ceiling = (1 - beta2) ** -0.5 if beta2 < 1 else np.inf
    if ceiling < CEILING:
        raise Lacks(f"a larger beta2: with {beta2:g}, adam_rms cannot exceed {ceiling:.2g}")


def _late(run: Run, series: Series) -> Iterator[Fired]:
    peaks = np.fmax.reduce(series.values, axis=0)
    for index in np.argwhere(peaks >= RMS_HIGH).tolist():
        rms = track(run, series, tuple(index))
        high = np.flatnonzero(rms.values >= RMS_HIGH)
        peak = int(np.argmax(rms.values))
        where = replace(rms.where, steps=(int(rms.steps[high[0]]), int(rms.steps[high[-1]])))
        yield Fired(
            "warning",
            f"adam_rms of {at(where)} reached {number(rms.values[peak])} at step {rms.steps[peak]}, and was "
            f"{RMS_HIGH} or more in {len(high)} of {len(rms.values)} samples",
            observed=float(rms.values[peak]), threshold=RMS_HIGH, where=where,
            confidence=0.5 if len(high) == 1 else 0.8,
        )
