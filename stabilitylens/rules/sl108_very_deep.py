from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._placement import depth_of, doubt, known, placement_of, qk_norm_of

#: heuristic: a rule of thumb among practitioners; no published source was found for it
LAYERS = 60


@rule(code="SL108", needs=("anatomy",), since="0.1.0")
def very_deep(evidence: Evidence) -> list[Fired]:
    """Models of more than 60 blocks have a norm on branches' outputs, or on queries and keys.

    ## What it flags
    More than 60 blocks with neither Peri-LN nor QK-Norm: information. All of this rule is heuristic.

    ## Why it matters
    Whatever grows a little in each block grows most in the deepest models: the stream, and with it the logits. A norm
    after each branch holds the first, a norm on queries and keys the second.

    ## Evidence
    - Kim et al. compare the growth of activations under Pre-LN, Post-LN and Peri-LN: <https://arxiv.org/abs/2502.02732>.
    - ViT-22B cured the growth of logits with QK-Norm: <https://arxiv.org/abs/2302.05442>.

    No source gives a depth. 60 is common advice; Llama 3 has 126 blocks at 405B parameters, with neither, and trained:
    <https://arxiv.org/abs/2407.21783>.

    ## Example
    80 blocks have neither a norm on their branches' outputs nor one on queries and keys.

    ## Known false positives
    - Most published models of this depth before 2025, Llama 3 among them.

    ## Remedy
    RMSNorm on queries and keys per head, and a norm before and after each branch (Peri-LN), where a model is still to
    be designed. Otherwise watch `max_attn_logit` and `resid_rms`.
    """
    anatomy = known(evidence)
    depth = depth_of(anatomy)
    normed = anatomy.n_attention != 0 and qk_norm_of(anatomy) != "none"
    if depth <= LAYERS or normed or placement_of(anatomy) in ("peri", "output"):
        return []
    message = f"{depth} blocks have neither a norm on their branches' outputs nor one on queries and keys"
    sure = 0.3 * doubt(anatomy, "norm_placement", "qk_norm")
    return [Fired("info", message, float(depth), float(LAYERS), confidence=sure)]
