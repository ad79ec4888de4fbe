from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._placement import known


@rule(code="SL107", needs=("anatomy",), since="0.1.0", evidence_scale=7e9)
def scaling_twice(evidence: Evidence) -> list[Fired]:
    """The growth of the stream is held back once, by scaled norms or by a scaled initialisation.

    ## What it flags
    Norms followed by a factor that shrinks with depth (LayerNorm scaling) in a model whose output projections also
    start scaled down with depth: a warning. The recipe has to say the latter, as `scaled_init`.

    ## Why it matters
    Both do the same thing. Together they make the branches of late blocks so small that these blocks learn slowly.

    ## Evidence
    - The Curse of Depth, whose authors propose LayerNorm scaling, finds that a scaled initialisation diminishes its
      effect and recommends to remove that: <https://arxiv.org/abs/2502.05795>.

    ## Example
    The norms are scaled down with depth, and output projections start scaled down too.

    ## Known false positives
    - A scaled initialisation of parts that feed no residual sum, such as the output layer.

    ## Remedy
    Keep LayerNorm scaling and start all projections at the same size, or the other way round.
    """
    anatomy, recipe = known(evidence), evidence.recipe
    if anatomy.norm_scale is None:
        raise Lacks("whether the norms are scaled with depth")
    if not anatomy.norm_scale:
        return []
    if recipe is None or recipe.scaled_init is None:
        raise Lacks("whether output projections start scaled: scaled_init in the recipe")
    if not recipe.scaled_init:
        return []
    message = "the norms are scaled down with depth, and output projections start scaled down too"
    return [Fired("warning", message, confidence=0.7)]
