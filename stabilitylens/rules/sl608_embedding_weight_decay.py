from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._recipe import stated


@rule(code="SL608", needs=("recipe",), since="0.1.0", evidence_scale=1.3e10)
def embedding_weight_decay(evidence: Evidence) -> list[Fired]:
    """Token embeddings are exempt from weight decay.

    ## What it flags
    A weight decay on the token embeddings, as the recipe says: information. Models that read no tokens are clear.

    ## Why it matters
    Decay shrinks the embeddings, and with them the stream that enters the first norm. The gradient through that norm is
    inverse to the stream's size, so early gradients grow while the embeddings shrink.

    ## Evidence
    - OLMo 2 leaves embeddings out of weight decay for stability: <https://arxiv.org/abs/2501.00656>.
    - Takase et al. relate loss spikes to small embeddings through the gradient of the first norm:
      <https://arxiv.org/abs/2312.16903>.

    ## Example
    The token embeddings have a weight decay of 0.1.

    ## Known false positives
    - Embeddings that are tied to the output layer, where decay holds the output logits.
    - Many well-trained models decay all matrices alike.

    ## Remedy
    A parameter group of their own with weight decay 0.
    """
    recipe, anatomy = stated(evidence), evidence.anatomy
    if recipe.weight_decay == 0 or (anatomy is not None and anatomy.reads_tokens is False):
        return []
    decay = recipe.embedding_weight_decay
    if decay is None:
        raise Lacks("the weight decay of the embeddings: embedding_weight_decay in the recipe")
    if decay <= 0:
        return []
    return [Fired("info", f"the token embeddings have a weight decay of {decay:g}", decay, 0.0, confidence=0.5)]
