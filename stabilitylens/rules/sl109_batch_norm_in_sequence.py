from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._placement import kinds_of, known


@rule(code="SL109", needs=("anatomy",), since="0.1.0")
def batch_norm_in_sequence(evidence: Evidence) -> list[Fired]:
    """Sequence models normalise each token by itself, not over the batch.

    ## What it flags
    BatchNorm on a branch of a model that reads token ids, or whose recipe names language modelling as its task: an
    error. Vision models are left out.

    ## Why it matters
    BatchNorm's statistics run over all tokens of a batch: padding and length change them, tokens see the future of
    their own sequence through them, and at inference other statistics are used than in training.

    ## Evidence
    - Layer normalisation was made for this: it needs no other sample and works at any length:
      <https://arxiv.org/abs/1607.06450>.
    - PowerNorm measures how batch statistics of language data fluctuate in Transformers, and that plain BatchNorm
      is far worse there: <https://arxiv.org/abs/2003.07845>.

    ## Example
    24 of 24 branches are normalised by BatchNorm, and the model reads tokens.

    ## Known false positives
    - Encoders of fixed-length sequences without padding, such as time series cut to windows.
    - Convolutional parts of speech encoders, where BatchNorm is common.

    ## Remedy
    LayerNorm or RMSNorm, which look at one token at a time.
    """
    anatomy = known(evidence)
    total = len(anatomy.sub_layers) or 1
    if anatomy.norm_placement is None and not kinds_of(anatomy):
        raise Lacks("the kind of the norms")
    found = sum(kind == "batchnorm" for kind in kinds_of(anatomy))
    if not found:
        return []
    task = evidence.recipe.task if evidence.recipe is not None else None
    if anatomy.reads_tokens is None and task is None:
        raise Lacks("whether the model reads token sequences: task in the recipe")
    if not anatomy.reads_tokens and task != "lm":
        return []
    why = "the model reads tokens" if anatomy.reads_tokens else "its task is language modelling"
    message = f"{found} of {total} branches are normalised by BatchNorm, and {why}"
    return [Fired("error", message, float(found), 0.0, confidence=0.9)]
