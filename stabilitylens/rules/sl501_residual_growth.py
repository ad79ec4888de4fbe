from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._layers import at, number, per_layer
from stabilitylens.rules._track import levels, recorded, sampled, track
from stabilitylens.rules._trend import rising
from stabilitylens.run import Run, Series

#: heuristic: |ln of the change of RMS a block|, as if every block doubled or halved the stream
DOUBLING = float(np.log(2))
#: heuristic: total change from the first block to the last under which no rate counts, as in shallow models
TOTAL = 30.0
#: heuristic: growth of a block's RMS in the run
GROWTH = 30.0
#: heuristic: growth of a block's RMS that training alone does not explain
GROWTH_HIGH = 1000.0
#: largest finite number of fp16
FP16_MAX = 65504.0
#: heuristic: three doublings short of the largest number of fp16
FP16_NEAR = FP16_MAX / 8
#: heuristic: one doubling short of it
FP16_AT = FP16_MAX / 2


@rule(code="SL501", needs=("resid_rms",), since="0.1.0", initial=True)
def residual_growth(evidence: Evidence) -> list[Fired]:
    """The residual stream keeps its size from block to block and over the run.

    ## What it flags
    By the median of the last 5 samples:

    - by depth: `resid_rms` changes, block by block, by a factor of 2 or more on average, and by a factor of 30 or more
      in all: a warning. The rate is ln(last / first) / (blocks − 1);
    - over the run: `resid_rms` of a block grew 30-fold and is still rising: information; 1,000-fold: a warning;
    - in fp16 only: `resid_absmax` past 8,188, an eighth of the largest number: a warning; past half of it: an error.

    ## Why it matters
    What a block adds matters in proportion to the stream it is added to: a stream that grows with depth leaves
    late blocks without effect, and one that shrinks leaves the early ones. In fp16 the stream overflows at
    65504, and the next normalisation turns that into NaN.

    ## Evidence
    - OLMo 2 measures how activations and gradients grow over depth, and picks an initialisation that keeps both:
      <https://arxiv.org/abs/2501.00656>.
    - Kim et al. compare the growth of activations under Pre-LN, Post-LN and Peri-LN:
      <https://arxiv.org/abs/2502.02732>.
    - Measured for this rule at initialisation, width 128 and 64 blocks: the variance of the stream after the last
      block is 1 with Post-LN, 48 with Pre-LN, 139 with Peri-LN. All three are far under the thresholds.

    The thresholds are heuristic; the largest fp16 number is not.

    ## Example
    `resid_absmax` of layer 11 is 41,200 in fp16, which overflows at 65504.

    ## Known false positives
    - A few tokens with massive activations, which many trained models have; they move `resid_absmax` much
      more than `resid_rms`.
    - Models with very small embeddings, whose first block sets the scale.

    ## Remedy
    Scale the output projections of the branches by 1/√(2·layers) at initialisation, or use Peri-LN. bf16 instead
    of fp16 where the range is the problem.
    """
    run = recorded(evidence)
    series = sampled(run, "resid_rms")
    found = [*_overflowing(run, evidence), *_growing(run, series), *_by_depth(run, series)]
    return per_layer(found)


def _by_depth(run: Run, series: Series) -> Iterator[Fired]:
    level = np.atleast_1d(levels(series))
    seen = np.flatnonzero(np.isfinite(level) & (level > 0)) if level.ndim == 1 else np.zeros(0, dtype=int)
    if len(seen) < 2:
        return
    first, last = int(seen[0]), int(seen[-1])
    total = float(np.log(level[last]) - np.log(level[first]))
    rate = total / (last - first)
    if abs(rate) >= DOUBLING and abs(total) >= np.log(TOTAL):
        top = track(run, series, (last,))
        yield Fired(
            "warning",
            f"resid_rms goes from {number(level[first])} after layer {first} to {number(level[last])} after layer "
            f"{last}: a factor of {number(float(np.exp(rate)))} a block",
            observed=rate, threshold=DOUBLING if rate > 0 else -DOUBLING, confidence=0.7,
            where=replace(top.where, steps=(int(top.steps[0]), int(top.steps[-1]))),
        )


def _growing(run: Run, series: Series) -> Iterator[Fired]:
    tracks = [track(run, series, index) for index in np.ndindex(series.values.shape[1:])]
    grown = [t for t in tracks if len(t.values) and t.level > GROWTH * t.early > 0 and rising(t)]
    for block in sorted(grown, key=lambda t: -t.level / t.early):
        growth = block.level / block.early
        high = growth > GROWTH_HIGH
        yield Fired(
            "warning" if high else "info",
            f"resid_rms of {at(block.where)} grew from {number(block.early)} to {number(block.level)} and is still "
            "rising",
            observed=growth, threshold=GROWTH_HIGH if high else GROWTH, confidence=0.6,
            where=block.since(GROWTH * block.early),
        )


def _overflowing(run: Run, evidence: Evidence) -> Iterator[Fired]:
    half = evidence.recipe is not None and evidence.recipe.precision == "fp16"
    if not half or run.why_missing("resid_absmax") is not None:
        return
    series = run["resid_absmax"]
    level = levels(series)
    for index in sorted(np.argwhere(level > FP16_NEAR).tolist(), key=lambda i: -float(level[tuple(i)])):
        block = track(run, series, tuple(index))
        high = block.level > FP16_AT
        yield Fired(
            "error" if high else "warning",
            f"resid_absmax of {at(block.where)} is {number(block.level)} in fp16, which overflows at {FP16_MAX:.0f}",
            observed=block.level, threshold=FP16_AT if high else FP16_NEAR, confidence=0.9,
            where=block.since(FP16_NEAR),
        )
