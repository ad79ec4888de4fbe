from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._placement import depth_of, doubt, known, placement_of

#: heuristic: the depth of 7B models, the largest in the source (https://arxiv.org/abs/2502.05795)
LAYERS = 32


@rule(code="SL106", needs=("anatomy",), since="0.1.0", evidence_scale=7e9)
def deep_pre_ln(evidence: Evidence) -> list[Fired]:
    """Deep Pre-LN models hold back the growth of the stream, so that late blocks still matter.

    ## What it flags
    32 blocks or more with Pre-LN, where neither a factor that shrinks with depth follows their norms (LayerNorm
    scaling), nor a factor weighs their branches, nor the recipe says that output projections start scaled: information.
    Where the factor could not be read it says so.

    ## Why it matters
    With Pre-LN the stream grows with every block, while each branch sees a normalised copy of it. Late branches then
    add little to a large stream, and the blocks come close to the identity.

    ## Evidence
    - The Curse of Depth reports that the late half of large Pre-LN models does little, relates it to the growing
      variance, and proposes to scale norms by 1/√ℓ, at 130M to 7B parameters: <https://arxiv.org/abs/2502.05795>.
    - Measured for this rule at initialisation, width 128, 64 blocks: the stream's variance was 48 with Pre-LN, 1 with
      Post-LN and 139 with Peri-LN; the last block's gradient falls with depth (log-log slope −0.48).

    The depth of 32 is heuristic. Most large models are deep Pre-LN models and train well; this is about blocks that do
    little, not about divergence.

    ## Example
    80 blocks are Pre-LN, and no factor that shrinks with depth follows their norms.

    ## Known false positives
    - Scaled initialisations, which do not show in the dataflow: say `scaled_init` in the recipe.

    ## Remedy
    Multiply the output of the norm in block ℓ by 1/√ℓ, or start the output projections at 1/√(2·layers) of their
    size; not both.
    """
    anatomy = known(evidence)
    if placement_of(anatomy) != "pre" or depth_of(anatomy) < LAYERS:
        return []
    scaled_init = evidence.recipe is not None and evidence.recipe.scaled_init
    if anatomy.norm_scale or anatomy.residual_scale or scaled_init:
        return []
    unread = anatomy.norm_scale is None
    factor = "whether a factor that shrinks with depth follows their norms could not be read" if unread else (
        "no factor that shrinks with depth follows their norms")
    sure = doubt(anatomy, "norm_placement") * (0.4 if unread else 0.6)
    depth = depth_of(anatomy)
    return [Fired("info", f"{depth} blocks are Pre-LN, and {factor}", float(depth), float(LAYERS), confidence=sure)]
