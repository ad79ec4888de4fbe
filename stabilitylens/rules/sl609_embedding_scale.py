from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._layers import number
from stabilitylens.rules._placement import known, placement_of
from stabilitylens.rules._track import recorded, sampled, track

#: heuristic: a tenth of the size that Takase et al. ask for (https://arxiv.org/abs/2312.16903); plain embeddings have 0.02
SMALL = 0.1


@rule(code="SL609", needs=("anatomy", "embedding_rms"), since="0.1.0", initial=True)
def embedding_scale(evidence: Evidence) -> list[Fired]:
    """The stream that enters the first block of a Pre-LN model is not tiny.

    ## What it flags
    An `embedding_rms` under 0.1 at the start, in a model with Pre-LN: information. It is the RMS of the stream before the
    first block, so a factor √d or a norm on the embeddings is in it.

    ## Why it matters
    The gradient through a norm is inverse to the size of its input. With a stream of 0.02 the first norm
    multiplies gradients by 50, and the first branches decide alone where the stream goes.

    ## Evidence
    - Takase et al. find that a stream of RMS near 1 at the embeddings, by √d or by a norm on them, avoids loss
      spikes: <https://arxiv.org/abs/2312.16903>.
    - The original Transformer multiplies its embeddings by √d: <https://arxiv.org/abs/1706.03762>.

    The threshold is heuristic.

    ## Example
    The stream that enters the first block has an RMS of 0.02.

    ## Known false positives
    - GPT-2 and most models since start from embeddings of 0.02, and train well.

    ## Remedy
    Multiply the embeddings by √d in the forward, start them at a standard deviation of 1, or put a norm on them.
    """
    if placement_of(known(evidence)) != "pre":
        return []
    run = recorded(evidence)
    series = sampled(run, "embedding_rms")
    size = track(run, series, (0,) * len(series.axes))
    if size.early >= SMALL:
        return []
    message = f"the stream that enters the first block has an RMS of {number(size.early)}"
    return [Fired("info", message, size.early, SMALL, where=size.since(0.0, above=True), confidence=0.5)]
