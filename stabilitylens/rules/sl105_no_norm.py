from stabilitylens.anatomy import Anatomy
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._layers import number
from stabilitylens.rules._placement import depth_of, doubt, known, placement_of
from stabilitylens.rules._track import RECENT, levels, sampled

#: heuristic: half the depth at which plain initialisation failed in our measurement (see Evidence)
LAYERS = 8
#: heuristic: growth of the stream over all blocks; a scaled initialisation allows less than twofold
GROWTH = 10.0


@rule(code="SL105", needs=("anatomy",), since="0.1.0", initial=True)
def no_norm(evidence: Evidence) -> list[Fired]:
    """Deep blocks have a norm, or something else that keeps their branches small.

    ## What it flags
    8 blocks or more without any norm on their branches. It is

    - nothing where a factor weighs branches or stream at their sum, as in ReZero, or the recipe says that output
      projections start scaled;
    - an error where the dataflow shows no such factor and nothing is known of a scaled initialisation;
    - a warning where that could not be read.

    Where `resid_rms` was measured, before training or in it, it decides: an error if the stream grows tenfold or more
    over the blocks, else information.

    ## Why it matters
    Without a norm every branch adds in proportion to the stream, so the stream grows by a constant factor a block, and
    with it logits and gradients.

    ## Evidence
    - Measured for this rule: 16 layers without normalisation, loss after 150 steps. Plain initialisation: 2,466
      (failed). Output projections × 1/√(2·layers): 2.57. ReZero: 2.68. For comparison Pre-LN: 2.82, Post-LN: 3.22.
    - ReZero trains deep Transformers without norms: <https://arxiv.org/abs/2003.04887>.
    - Fixup does so for residual networks by initialisation alone: <https://arxiv.org/abs/1901.09321>.

    Deep networks without normalisation can train; it is the plain initialisation that fails. The depth of 8 and the
    growth of 10 are heuristic.

    ## Example
    16 blocks have no norm, and no factor weighs what they add.

    ## Known false positives
    - Initialisations that make branches small; they do not show in the dataflow. Measure with `--init`, or say
      `scaled_init` in the recipe.

    ## Remedy
    Scale the output projections of the branches by 1/√(2·layers) at initialisation, weigh each branch with a factor
    that starts at 0 (ReZero), or add a norm.
    """
    anatomy = known(evidence)
    if placement_of(anatomy) != "none" or any(sub.norm_kind for sub in anatomy.sub_layers):
        return []
    depth = depth_of(anatomy)
    if depth < LAYERS or anatomy.residual_scale or (evidence.recipe is not None and evidence.recipe.scaled_init):
        return []
    sure = doubt(anatomy, "norm_placement")
    growth = _growth(evidence)
    if growth is not None:
        message = f"{depth} blocks have no norm, and resid_rms after the last is {number(growth)} times that after the first"
        return [Fired("error" if growth >= GROWTH else "info", message, growth, GROWTH, confidence=0.9 * sure)]
    return [_unmeasured(anatomy, depth, sure)]


def _unmeasured(anatomy: Anatomy, depth: int, sure: float) -> Fired:
    message = f"{depth} blocks have no norm, and "
    if anatomy.residual_scale is None:
        doubtful = message + "whether a factor weighs what they add could not be read"
        return Fired("warning", doubtful, float(depth), float(LAYERS), confidence=0.5 * sure)
    return Fired("error", message + "no factor weighs what they add", float(depth), float(LAYERS), confidence=0.7 * sure)


def _growth(evidence: Evidence) -> float | None:
    """The stream after the last block over that after the first; None where no run says."""
    try:
        level = levels(sampled(evidence.run, "resid_rms", RECENT)) if evidence.run is not None else None
    except Lacks:
        return None
    if level is None or level.ndim != 1:
        return None
    seen = level[level > 0]
    return float(seen[-1] / seen[0]) if len(seen) > 1 else None
