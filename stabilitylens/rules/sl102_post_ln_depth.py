from stabilitylens.anatomy import Anatomy
from stabilitylens.findings import Severity
from stabilitylens.recipe import Recipe
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._recipe import WARM_UP

#: heuristic: BERT-base and the original Transformer's encoder and decoder together have 12
LAYERS = 12


@rule(code="SL102", needs=("anatomy",), since="0.1.0")
def post_ln_depth(evidence: Evidence) -> list[Fired]:
    """Blocks with the norm after the residual sum (Post-LN) are stacked no deeper than 12.

    ## What it flags
    More than 12 blocks that all compute N(x + F(x)), with no factor on stream or branch at their sum. It is a warning, and information where the recipe has a
    warm-up of at least 2/(1−β2) steps (40 for β2 = 0.95, 2,000 for 0.999). The placement is read from the order of
    operations, never from the names of modules.

    ## Why it matters
    In Post-LN the residual stream is normalised after every sum, so no path of plain additions leads from the
    loss to the first block. At initialisation gradients are large near the output at any depth, and the first
    steps are too large without a warm-up.

    ## Evidence
    - Xiong et al. derive gradient sizes at initialisation for both placements and train Pre-LN without
      warm-up: <https://arxiv.org/abs/2002.04745>.
    - Mix-LN reports vanishing gradients in early Post-LN layers: <https://arxiv.org/abs/2412.13795>.
    - DeepNet trains very deep Post-LN models by scaling residual and initialisation:
      <https://arxiv.org/abs/2203.00555>.
    - The length of warm-up is Ma and Yarats's rule of thumb: <https://arxiv.org/abs/1910.04209>.
    - Measured for this rule at initialisation, width 128, 2 to 64 blocks: the last block's gradient does not depend on
      depth with Post-LN (log-log slope +0.02), and falls with Pre-LN (−0.48). After 150 steps, 16 Post-LN layers
      had a loss of 3.22 and 16 Pre-LN layers 2.82.

    The depth of 12 is heuristic: depth alone does not decide, and 24 layers have been trained with care.

    ## Example
    18 blocks are Post-LN, more than 12, and no warm-up is known.

    ## Known false positives
    - Initialisations made for depth, such as Admin's, which the dataflow does not show.
    - Models that were trained elsewhere and are only fine-tuned.

    ## Remedy
    Pre-LN (x + F(N(x))) or Peri-LN (x + N(F(N(x)))). To stay with Post-LN: DeepNorm, and a longer warm-up.
    """
    depth = _post_ln_blocks(evidence.anatomy)
    if depth <= LAYERS or (evidence.anatomy is not None and evidence.anatomy.residual_scale):
        return []
    severity, warm_up = _weigh(evidence.recipe)
    uncertain = evidence.anatomy is not None and "norm_placement" in evidence.anatomy.uncertain
    return [
        Fired(
            severity, f"{depth} blocks are Post-LN, more than {LAYERS}, and {warm_up}",
            observed=float(depth), threshold=float(LAYERS), confidence=0.4 if uncertain else 0.7,
        )
    ]


def _post_ln_blocks(anatomy: Anatomy | None) -> int:
    if anatomy is None or (anatomy.norm_placement is None and not anatomy.sub_layers):
        raise Lacks("the placement of the norms")
    placements: dict[int, set[str]] = {}
    for sub in anatomy.sub_layers:
        if sub.layer is not None:
            placements.setdefault(sub.layer, set()).add(sub.placement)
    if anatomy.norm_placement != "post":
        return sum(found == {"post"} for found in placements.values())
    depth = anatomy.n_layers if anatomy.n_layers is not None else len(placements)
    if not depth:
        raise Lacks("the number of layers")
    return depth


def _weigh(recipe: Recipe | None) -> tuple[Severity, str]:
    if recipe is None or recipe.warmup_steps is None:
        return "warning", "no warm-up is known"
    if recipe.beta2 is None or recipe.beta2 >= 1:
        return "warning", f"whether its warm-up of {recipe.warmup_steps} steps is enough cannot be told without beta2"
    wanted = round(WARM_UP / (1 - recipe.beta2))
    if recipe.warmup_steps >= wanted:
        return "info", f"its warm-up of {recipe.warmup_steps} steps is no shorter than the {wanted} advised"
    return "warning", f"its warm-up of {recipe.warmup_steps} steps is shorter than the {wanted} advised"
