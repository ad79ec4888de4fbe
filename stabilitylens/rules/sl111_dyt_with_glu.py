from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._dyt import bounded
from stabilitylens.rules._placement import known


@rule(code="SL111", needs=("anatomy",), since="0.1.0")
def dyt_with_glu(evidence: Evidence) -> list[Fired]:
    """Language models with gated feed-forwards use a norm, not DyT or Derf.

    ## What it flags
    DyT or Derf on the branches of a model that reads tokens and whose feed-forwards multiply two projections (SwiGLU
    and its kin): a warning.

    ## Why it matters
    The gate multiplies two functions of the same bounded input. Where many entries are saturated, both factors
    carry the same few signs, and training was seen to collapse.

    ## Evidence
    - Verma localises the collapse of a Llama-like model with DyT to the SwiGLU gate, with saturation telling collapse
      from convergence, in runs short of compute: <https://arxiv.org/abs/2604.23434>.
    - DyT's authors trained Llama models, which have such gates, to 70B with a tuned α: <https://arxiv.org/abs/2503.10622>.

    The two disagree, so this says that α needs care, not that it cannot work.

    ## Example
    64 of 64 branches have dyt in place of a norm, and the feed-forwards are gated.

    ## Known false positives
    - Models with the authors' α for their width (see dyt-alpha).

    ## Remedy
    RMSNorm. To keep DyT: the α of its authors' table, and a look at the share of saturated entries early in training.
    """
    anatomy = known(evidence)
    branches = bounded(anatomy)
    if not branches:
        return []
    task = evidence.recipe.task if evidence.recipe is not None else None
    if anatomy.gated is None or (anatomy.reads_tokens is None and task is None):
        raise Lacks("whether the feed-forwards are gated" if anatomy.gated is None else "whether the model reads tokens")
    if not anatomy.gated or not (anatomy.reads_tokens or task == "lm"):
        return []
    kind, total = branches[0].norm_kind, len(anatomy.sub_layers)
    message = f"{len(branches)} of {total} branches have {kind} in place of a norm, and the feed-forwards are gated"
    return [Fired("warning", message, float(len(branches)), 0.0, confidence=0.5)]
