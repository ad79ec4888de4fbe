from stabilitylens.findings import Severity
from stabilitylens.recipe import Recipe
from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._placement import doubt, known, placement_of
from stabilitylens.rules._recipe import WARM_UP, advised_warm_up, check_adam, stated, warm_up_of


@rule(code="SL601", needs=("anatomy",), since="0.1.0", evidence_scale=1.1e8)
def post_ln_warm_up(evidence: Evidence) -> list[Fired]:
    """Post-LN models warm the learning rate up long enough.

    ## What it flags
    Blocks that compute N(x + F(x)) and a warm-up of fewer than 2/(1−β2) steps (40, 200 and 2,000 for β2 = 0.95, 0.99
    and 0.999): an error; a warning where a factor weighs stream or branch at their sum, as in DeepNorm.

    ## Why it matters
    In Post-LN the gradients near the output are large at initialisation. With Adam's first steps, whose size is known
    least, a full learning rate throws the last blocks far off, and many models never recover.

    ## Evidence
    - Xiong et al. derive the large gradients and report Post-LN translation models that fail without warm-up, at 8.45
      BLEU against about 34 with it: <https://arxiv.org/abs/2002.04745>.
    - The length is Ma and Yarats's rule of thumb: <https://arxiv.org/abs/1910.04209>.
    - DeepNet weighs the residual sum so that Post-LN trains at great depth: <https://arxiv.org/abs/2203.00555>.

    ## Example
    24 blocks are Post-LN, and the warm-up is 0 steps, fewer than the 2,000 advised for β2 = 0.999.

    ## Known false positives
    - Fine-tuning of a trained Post-LN model, such as BERT, at a small learning rate.
    - Models of a few layers, which can train without.

    ## Remedy
    Warm up for at least 2/(1−β2) steps, or use Pre-LN, which trains without.
    """
    anatomy = known(evidence)
    if placement_of(anatomy) != "post":
        return []
    recipe = stated(evidence)
    steps = warm_up_of(recipe)
    wanted, why = _wanted(recipe, steps)
    if steps >= wanted:
        return []
    depth = f"{anatomy.n_layers} blocks are" if anatomy.n_layers else "the blocks are"
    message = f"{depth} Post-LN, and the warm-up is {steps:,} steps, fewer than the {wanted:,} advised for {why}"
    severity: Severity = "warning" if anatomy.residual_scale else "error"
    return [Fired(severity, message, float(steps), float(wanted), confidence=0.8 * doubt(anatomy, "norm_placement"))]


def _wanted(recipe: Recipe, steps: int) -> tuple[int, str]:
    """The advised steps, and for which β2; none at all are too few for any."""
    if steps == 0 and recipe.beta2 is None:
        check_adam(recipe)
        return round(WARM_UP), "the smallest β2, 0"
    return advised_warm_up(recipe), f"β2 = {recipe.beta2:g}"
