"""The suspect attention-logit-growth."""

from __future__ import annotations

from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import DECISIVE, FAIR, STRONG, WEAK, Opinion, Scales, suspect

#: where softmax is one-hot, see the rule attention-logit-growth
WATCHED = 100.0
#: how far back a sample counts, in steps. *Heuristic*.
LATELY = 100


@suspect()
def attention_logit_growth(case: Case) -> Opinion:
    """Attention logits had grown until softmax put all weight on one key.

    ## Speaks for it
    - `max_attn_logit` past 100 before the incident, or rising when the loss did not yet; attention entropy that fell first.
    - Query and key norms that climb while those of values do not.

    ## Speaks against it
    - Logits that were recorded and are small, QK-Norm, a soft-cap.

    ## Evidence
    - Wortsman et al. reproduce it in small models: <https://arxiv.org/abs/2309.14322>.
    - Divergence of a ViT near 8B parameters, cured by QK-Norm: <https://arxiv.org/abs/2302.05442>.

    ## Settle it
    Sample `max_attn_logit` while a copy of the last checkpoint runs on over the incident.

    ## Remedy
    QK-Norm; QK-Clip or a lower peak learning rate without a change of architecture.
    """
    scales, anatomy = Scales(0.06), case.run.header.anatomy
    largest = case.highest_lately("max_attn_logit", LATELY)
    fired = case.said("SL201", "SL202", "SL203")
    scales.pro_first(STRONG, fired)
    scales.pro(FAIR, f"max_attn_logit was {largest or 0:.3g} before it", largest is not None and largest > WATCHED and not fired)
    moved = [m for m in case.early_movers if m.metric == "max_attn_logit" and m.after > m.before]
    moved += [m for m in case.early_movers if m.metric.startswith("attn_entropy") and m.after < m.before]
    scales.pro_first(FAIR, moved, "attention moved first: ")
    scales.con(DECISIVE, f"max_attn_logit was {largest or 0:.3g} at most before it", largest is not None and largest <= WATCHED)
    normed = anatomy is not None and (anatomy.qk_norm not in (None, "none") or anatomy.soft_cap is not None)
    scales.con(FAIR, "queries and keys are normalised, or their logits capped", normed)
    scales.con(0.0, "max_attn_logit was not recorded", largest is None)
    scales.con(FAIR, "the loss leapt in one step", case.leapt and case.gap == 1)
    scales.con(WEAK, "it was one log wide", case.incident.kind == "outlier")
    return scales.opinion(
        f"Attach a lens, every=1, to the last checkpoint and run it on to step {case.incident.peak_step}: do logits rise before the loss?"
    )
