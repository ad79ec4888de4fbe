from collections.abc import Iterator

import numpy as np

from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._layers import at, number, per_layer
from stabilitylens.rules._track import RECENT, arrays, levels, recorded, track
from stabilitylens.run import Run, Series

#: heuristic: gradient RMS in units of ε under which ε takes a tenth of a step: r/(r+1) at r = 10
NEAR = 10.0
#: gradient RMS in units of ε at which ε takes half of a step: r/(r+1) at r = 1
AT = 1.0


@rule(code="SL302", needs=("grad_rms", "recipe"), since="0.1.0")
def epsilon_floor(evidence: Evidence) -> list[Fired]:
    """Gradients are well above Adam's ε in every block and module.

    ## What it flags
    A block, or a module outside the blocks, whose `grad_rms` (median of the last 5 samples) is under 10 ε: a warning;
    under ε: an error. `grad_rms` is taken after clipping, as Adam sees it. A gradient that is exactly zero
    is left out: it takes no step at any ε.

    ## Why it matters
    Adam divides by √v̂ + ε. For a steady gradient of r·ε the step is r/(r+1) of the step that was meant, so near ε
    the learning rate of that block quietly goes down, and no longer is the same for all blocks.

    ## Evidence
    - Wortsman et al. find that gradients which shrink as models and learning rates grow reach the default ε, and
      that a smaller ε helps: <https://arxiv.org/abs/2309.14322>.
    - Molybog et al. argue that Adam can enter a state of large updates that have little to do with the direction of
      descent, and relate it to gradients as small as ε: <https://arxiv.org/abs/2304.09871>.

    Which ε is best is contested; a small ε alone is therefore never flagged, only a gradient that comes near it.
    The factor 10 is heuristic.

    ## Example
    `grad_rms` of layer 0 is 3.1e-09, which is 0.31 of ε = 1e-08.

    ## Known false positives
    - Embeddings of which a batch touches few rows: most entries are zero and pull the RMS down. Compare
      with `adam_eps_share`.
    - The end of a schedule that anneals to a minimum without noise, as on toy data.

    ## Remedy
    Lower ε, with the second moment kept in float32. Look for the cause of the small gradient too: a loss averaged over
    too many tokens, a gradient scale that was not meant, a clip threshold that is far too low.
    """
    run, eps = recorded(evidence), _eps(evidence)
    found = [f for series in arrays(run, "grad_rms", RECENT) for f in _near(run, series, eps)]
    return per_layer(sorted(found, key=lambda f: f.observed or 0.0))


def _eps(evidence: Evidence) -> float:
    recipe = evidence.recipe
    if recipe is None or recipe.eps is None:
        raise Lacks("the optimizer's eps is not known")
    if recipe.optimizer is not None and not any(kind in recipe.optimizer.lower() for kind in ("adam", "lamb")):
        raise Lacks(f"a second moment: {recipe.optimizer} does not divide by one as Adam does")
    return recipe.eps


def _near(run: Run, series: Series, eps: float) -> Iterator[Fired]:
    level = levels(series)
    for index in np.argwhere((level > 0) & (level < NEAR * eps)).tolist():
        rms = track(run, series, tuple(index))
        limit = AT if rms.level < AT * eps else NEAR
        where = rms.since(NEAR * eps, above=False)
        yield Fired(
            "error" if limit == AT else "warning",
            f"grad_rms of {at(where)} is {number(rms.level)}, which is {number(rms.level / eps)} of ε = {eps:g}",
            observed=rms.level, threshold=limit * eps, where=where, confidence=0.8,
        )
