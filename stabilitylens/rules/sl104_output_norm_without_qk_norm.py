from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._depth import against_last
from stabilitylens.rules._layers import number
from stabilitylens.rules._placement import depth_of, doubt, known, placement_of, qk_norm_of
from stabilitylens.rules._track import RECENT, levels, sampled

#: heuristic: depth from which the effect was large in our measurement (see Evidence)
LAYERS = 16
#: heuristic: first block's gradient over the last's; 2 to 5 is what the other placements have (see Evidence)
RATIO = 10.0


@rule(code="SL104", needs=("anatomy",), since="0.1.0", evidence_scale=12.6e6)
def output_norm_without_qk_norm(evidence: Evidence) -> list[Fired]:
    """Blocks that normalise only what they add, x + N(F(x)), also normalise queries and keys.

    ## What it flags
    16 blocks or more whose norms are on the outputs of the branches alone, with no norm on queries and keys: a
    warning. Where gradients were measured by depth it is information if the first block's gradient is within ten
    times the last one's.

    ## Why it matters
    The norm on the output hides the size of the stream from the loss, and nothing normalises what enters attention.
    The stream grows with depth, logits grow with its square, and softmax saturates in the deep blocks: their
    gradient then comes through a few keys alone, and is large. OLMo 2, which places its norms so, normalises
    queries and keys too.

    ## Evidence
    - Measured for this rule at initialisation, width 128, 64 blocks, 4 seeds: the first block's gradient was 10.9
      with this placement and no QK-Norm, and 0.60 with QK-Norm. Post-LN had 0.39, Pre-LN 0.43, Peri-LN 0.56. We know
      of no published account.
    - OLMo 2 uses both together, and names them as measures for stability: <https://arxiv.org/abs/2501.00656>.

    The depth of 16 and the ratio of 10 are heuristic.

    ## Example
    32 blocks normalise their branches' outputs alone, and queries and keys are not normalised.

    ## Known false positives
    - Models with a soft-cap or ℓ2 norm on the logits: only a norm on queries and keys is looked for.
    - Initialisations with small projections, which keep the stream short.

    ## Remedy
    RMSNorm on queries and keys per head, or a norm on the input of each branch as well (Peri-LN).
    """
    anatomy = known(evidence)
    if placement_of(anatomy) != "output" or qk_norm_of(anatomy) != "none" or depth_of(anatomy) < LAYERS:
        return []
    depth, ratio = depth_of(anatomy), _measured(evidence)
    message = f"{depth} blocks normalise their branches' outputs alone, and queries and keys are not normalised"
    if ratio is not None:
        message += f"; resid_grad_norm of the first block is {number(ratio)} times that of the last"
    calm = ratio is not None and ratio < RATIO
    sure = doubt(anatomy, "norm_placement", "qk_norm") * (0.6 if ratio is None else 0.8)
    return [Fired("info" if calm else "warning", message, float(depth), float(LAYERS), confidence=sure)]


def _measured(evidence: Evidence) -> float | None:
    """The first block's gradient over the last one's; None where no run says."""
    if evidence.run is None:
        return None
    try:
        level = levels(against_last(sampled(evidence.run, "resid_grad_norm", RECENT)))
    except Lacks:
        return None
    return float(level[level == level][0])
