from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray
from scipy.ndimage import median_filter

from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._layers import number
from stabilitylens.rules._track import median, place, recorded, sampled
from stabilitylens.run import Run, Series

#: robust standard deviations, in log space, above its own recent level; from the authors' account (https://arxiv.org/abs/2210.02414) and *heuristic*
HIGH = 6.0
#: heuristic: blocks whose median is under this are calm
CALM = 3.0
#: heuristic: growth over the recent level that a small spread does not make up for
FACTOR = 3.0
#: heuristic: samples that the recent level is the median of
WINDOW = 31
#: heuristic: spread below which noise of the log is taken to be a tenth
SPREAD = 0.1
#: heuristic: one event may be one bad batch
EVENTS = 2


@rule(code="SL305", needs=("grad_norm/group", "grad_norm/layer"), since="0.1.0", evidence_scale=1.3e11)
def embedding_gradient_first(evidence: Evidence) -> list[Fired]:
    """The gradient of the embeddings does not jump while the blocks are calm.

    ## What it flags
    A module before the blocks, which is where embeddings are, whose gradient norm is 6 robust standard deviations and
    three times above its recent level, at samples at which the blocks are under 3: a warning for two such samples or
    more, else information. Levels are medians of 31 samples, deviations are of the logarithm.

    ## Why it matters
    A batch with rare or broken tokens reaches a few rows of the embeddings alone, and these are the parameters with the
    oldest second moments. Their jump was seen to come a few steps before a spike of the loss.

    ## Evidence
    - GLM-130B reports that abnormal gradients of the embedding layer come a few steps before its collapses, and
      shrinks that gradient: <https://arxiv.org/abs/2210.02414>.

    The numbers are heuristic.

    ## Example
    The gradient norm of embedding rose to 41 times its recent level at step 4,210 while the blocks stayed calm, one of
    3 such samples.

    ## Known false positives
    - Data in blocks, as one language after the other: the embeddings see the change first.
    - Tables of which each batch touches a few rows.

    ## Remedy
    Multiply the embedding's gradient by 0.1, as GLM-130B does, or give it a lower learning rate; look at the batches
    at the steps named.
    """
    run = recorded(evidence)
    modules, blocks = sampled(run, "grad_norm/group"), sampled(run, "grad_norm/layer")
    if modules.values.ndim != 2 or blocks.values.ndim != 2 or not modules.values.shape[1] or not blocks.values.shape[1]:
        raise Lacks("grad_norm of modules and of blocks")
    steps, of_modules, of_blocks = np.intersect1d(modules.steps, blocks.steps, return_indices=True)
    calm = median(_height(blocks.values[of_blocks])[0], 1) < CALM
    first = replace(modules, steps=steps, values=modules.values[of_modules])
    return list(_jumps(run, first, calm))


def _height(values: Float[ndarray, "step place"]) -> tuple[Float[ndarray, "step place"], Float[ndarray, "step place"]]:
    """Robust deviations of each value from its recent level, and its factor over that level."""
    with np.errstate(all="ignore"):
        logs = np.log(np.where(np.isfinite(values) & (values > 0), values, np.nan))
        filled = np.where(np.isnan(logs), median(logs, 0)[None, :], logs)
        above = logs - median_filter(filled, size=(WINDOW, 1), mode="nearest")
        spread = 1.4826 * median(np.abs(above), 0)
        return above / np.fmax(spread, SPREAD)[None, :], np.exp(above)


def _jumps(run: Run, series: Series, calm: Bool[ndarray, " step"]) -> Iterator[Fired]:
    """The first module's jumps: embeddings come before the blocks."""
    height, factor = _height(series.values[:, :1])
    hit = np.flatnonzero((height[:, 0] > HIGH) & (factor[:, 0] > FACTOR) & calm)
    if not len(hit):
        return
    worst = int(hit[np.argmax(factor[hit, 0])])
    where = replace(place(run, series, (0,)), steps=(int(series.steps[hit[0]]), int(series.steps[hit[-1]])))
    name = where.layer_name or "the first module"
    yield Fired(
        "warning" if len(hit) >= EVENTS else "info",
        f"the gradient norm of {name} rose to {number(float(factor[worst, 0]))} times its recent level at step "
        f"{int(series.steps[worst])} while the blocks stayed calm, one of {len(hit)} such samples",
        observed=float(height[worst, 0]), threshold=HIGH, where=where, confidence=0.5 if len(hit) < EVENTS else 0.7,
    )
