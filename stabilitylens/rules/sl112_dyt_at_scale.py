from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._dyt import bounded
from stabilitylens.rules._placement import known
from stabilitylens.rules._rule import in_words

#: size past which independent accounts of these layers are few (https://arxiv.org/abs/2604.23434)
PARAMETERS = 1e9


@rule(code="SL112", needs=("anatomy",), since="0.1.0")
def dyt_at_scale(evidence: Evidence) -> list[Fired]:
    """Models past a billion parameters have a norm with a record at that size.

    ## What it flags
    DyT or Derf in a model of more than 1 billion parameters: information.

    ## Why it matters
    Both are recent, and their effect depends on the size of model and data: they bound activations, which regularises
    where data are short, and costs where they are not.

    ## Evidence
    - DyT's authors trained language models to 70B, with an α of their own for each size: <https://arxiv.org/abs/2503.10622>.
    - Derf's authors report up to GPT-2's size for language, where it ties with LayerNorm:
      <https://arxiv.org/abs/2512.10938>.
    - Verma finds that DyT helps with little data and hurts with more, at 64M to 3.8B parameters:
      <https://arxiv.org/abs/2604.23434>.

    The size of 1 billion is heuristic.

    ## Example
    64 branches have derf in place of a norm, in a model of 6.74 billion parameters.

    ## Known false positives
    - Anyone who follows the recipe of DyT's authors at their sizes.

    ## Remedy
    RMSNorm where the run has to succeed. Otherwise a small run first, at the same ratio of tokens to parameters.
    """
    anatomy = known(evidence)
    branches = bounded(anatomy)
    if not branches:
        return []
    size = anatomy.n_parameters
    if size is None:
        raise Lacks("the number of parameters")
    if size <= PARAMETERS:
        return []
    message = f"{len(branches)} branches have {branches[0].norm_kind} in place of a norm, in a model of {in_words(size)} parameters"
    return [Fired("info", message, float(size), PARAMETERS, confidence=0.5)]
