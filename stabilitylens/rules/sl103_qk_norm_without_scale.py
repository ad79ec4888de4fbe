from stabilitylens.anatomy import AttentionCall
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._layers import at, number
from stabilitylens.rules._logits import LOGIT_HIGH, growth_seen, no_growth
from stabilitylens.rules._placement import doubt, known

#: a scale of one within rounding; 1/√d of a head of 2 channels is 0.71 already
UNSCALED = 0.99


@rule(code="SL103", needs=("anatomy",), since="0.1.0")
def qk_norm_without_scale(evidence: Evidence) -> list[Fired]:
    """Where queries and keys are normalised, their product is still scaled down.

    ## What it flags
    Attention calls that normalise queries and keys over a head or over the width, and then multiply them with a scale
    of 1: a warning. With a norm of gain 1 both have the length √d, so logits reach d, which 1/√d would make √d.

    A recorded run decides over that: it is an error where `max_attn_logit` of a head grew past 1,000, and
    information where logits were recorded and none grew past 100. ℓ2-normalised attention is left out, for there the
    product is at most 1 and has to be scaled up.

    ## Why it matters
    The norm bounds logits by d times the gains. Without a scale that bound is too large for wide heads: softmax
    is close to one-hot from the first step on, and little gradient passes through it.

    ## Evidence
    - The scale 1/√d comes with scaled dot-product attention: <https://arxiv.org/abs/1706.03762>.
    - Henry et al. normalise queries and keys and learn the scale: <https://arxiv.org/abs/2010.04245>.
    - Measured for this rule at initialisation, heads of 256 channels: with a scale of 1 the largest logit was 76 and
      the entropy ratio 0.05; with 1/√d the ratio was 0.90.

    ## Example
    4 of 4 attention calls normalise queries and keys of 256 channels and multiply them with a scale of 1.

    ## Known false positives
    - Models whose norm starts from small gains, which takes the place of the scale.
    - Trained models whose gains have learned the scale; a run with calm logits makes this information.

    ## Remedy
    Scale by 1/√d as without the norm, or learn a scale per head that starts there.
    """
    anatomy = known(evidence)
    calls = [call for call in anatomy.attention_calls if call.qk_norm in ("head", "full")]
    if not calls:
        _check(evidence)
        return []
    if all(call.scale is None for call in calls):
        raise Lacks("the scale of the attention product")
    bare = [call for call in calls if call.scale is not None and call.scale >= UNSCALED]
    return [_fired(bare, len(calls), evidence, doubt(anatomy, "qk_norm"))] if bare else []


def _check(evidence: Evidence) -> None:
    anatomy = known(evidence)
    if not anatomy.attention_calls and anatomy.n_attention != 0:
        raise Lacks("the attention calls of the model")


def _fired(bare: list[AttentionCall], total: int, evidence: Evidence, sure: float) -> Fired:
    width = f" of {bare[0].d_head} channels" if bare[0].d_head else ""
    message = f"{len(bare)} of {total} attention calls normalise queries and keys{width} and multiply them with a scale of 1"
    grown = growth_seen(evidence)
    scale = float(bare[0].scale or 1.0)
    if grown:
        level = f"max_attn_logit of {at(grown[0].track.where)} grew to {number(grown[0].level)}"
        severe = grown[0].level > LOGIT_HIGH
        return Fired("error" if severe else "warning", f"{message}; {level}", scale, UNSCALED, confidence=0.9)
    if grown is not None and evidence.run is not None:
        return Fired("info", f"{message}; {no_growth(evidence.run)}", scale, UNSCALED, confidence=0.5 * sure)
    return Fired("warning", message, scale, UNSCALED, confidence=0.7 * sure)
