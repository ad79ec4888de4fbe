from stabilitylens.anatomy import Anatomy
from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._placement import doubt, known, qk_norm_of


@rule(code="SL113", needs=("anatomy",), since="0.1.0")
def soft_cap_only(evidence: Evidence) -> list[Fired]:
    """Attention logits are held by a norm on queries and keys rather than by a soft-cap alone.

    ## What it flags
    Attention calls with a soft-cap, c·tanh(logit/c), and no norm on queries and keys: information.

    ## Why it matters
    The cap bounds what softmax sees, not what is in front of it: queries and keys can go on growing, the cap
    saturates, and no gradient passes through saturated logits. Many fused attention kernels lack it, too.

    ## Evidence
    - Gemma 2 caps attention logits at 50: <https://arxiv.org/abs/2408.00118>.
    - Gemma 3 has QK-Norm in its place: <https://arxiv.org/abs/2503.19786>.
    - Kimi K2's authors clip the weights of queries and keys, since logits before a cap can still grow:
      <https://arxiv.org/abs/2507.20534>.

    ## Example
    26 of 26 attention calls cap their logits at 50 and normalise neither queries nor keys.

    ## Known false positives
    - Gemma 2 trained well with it. This is about the better-tried alternative.

    ## Remedy
    RMSNorm on queries and keys per head. With the cap kept, watch `max_attn_logit`, which is taken before it.
    """
    anatomy = known(evidence)
    caps, total = _capped(anatomy)
    if not caps:
        return []
    message = f"{len(caps)} of {total} attention calls cap their logits at {caps[0]:g} and normalise neither queries nor keys"
    return [Fired("info", message, caps[0], confidence=0.6 * doubt(anatomy, "soft_cap", "qk_norm"))]


def _capped(anatomy: Anatomy) -> tuple[list[float], int]:
    """The caps of calls that have nothing else, and the number of all calls."""
    calls = anatomy.attention_calls
    if calls:
        return [call.soft_cap for call in calls if call.soft_cap is not None and call.qk_norm == "none"], len(calls)
    total, bare = anatomy.n_attention or 1, qk_norm_of(anatomy) == "none"
    return ([anatomy.soft_cap] * total if bare and anatomy.soft_cap is not None else []), total
