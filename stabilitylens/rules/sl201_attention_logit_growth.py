from collections.abc import Iterator

import numpy as np

from stabilitylens.anatomy import Anatomy
from stabilitylens.findings import Severity, Where
from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._layers import at, number, per_layer
from stabilitylens.rules._logits import LOGIT_EXTREME, LOGIT_HIGH, LOGIT_WATCHED, Growth, logit_growth
from stabilitylens.rules._track import levels, recorded, sampled, track
from stabilitylens.run import INITIAL, Run


@rule(code="SL201", needs=("max_attn_logit",), since="0.1.0", initial=True)
def attention_logit_growth(evidence: Evidence) -> list[Fired]:
    """Attention logits stay within the range where softmax is well behaved.

    ## What it flags
    A head whose `max_attn_logit` (median of the last 5 samples) is

    - past 100 and still rising: a warning;
    - past 1,000 and grown in this run: a warning, an error if it is still rising;
    - past 10,000 and grown in this run: an error.

    Rising means that the Theil-Sen slope over the last half of the run is positive with 95 %
    confidence and amounts to a tenth of the level, or that the level is half again the median of that
    half. A head that passed 100 and came down again is not flagged. Before training, a head whose largest logit is
    past 100 is flagged: a warning.

    Where that head's queries and keys are normalised, the message says so: then the gains of the norm have grown.

    ## Why it matters
    Logits are q·k·scale, so they grow with the product of both norms. Once they are large, softmax puts all
    weight on one key, almost no gradient passes through it, and small changes of the weights change
    which key is chosen. Loss and gradient norm often look ordinary while this happens.

    ## Evidence
    - Wortsman et al. reproduce the instability in small models at high learning rates, and show that QK-Norm
      removes it: <https://arxiv.org/abs/2309.14322>.
    - ViT-22B: training diverged near 8B parameters with very large attention logits, and QK-Norm cured it:
      <https://arxiv.org/abs/2302.05442>.
    - Kimi K2 rescales query and key weights when a head's largest logit passes 100:
      <https://arxiv.org/abs/2507.20534>.
    - Measured for this rule: 4 layers of width 64 on characters, 300 steps of AdamW. The largest logit reached
      57 at a learning rate of 0.01, 390 at 0.03 and 22,380 at 0.1; with QK-Norm it was 21 at 0.1. The loss only
      degraded, and the gradient norm never left its early level.

    The levels 1,000 and 10,000, and the meaning of rising, are heuristic.

    ## Example
    `max_attn_logit` of layer 2, head 1 grew from 3.1 to 22,400 and is still rising; it passed 100 at step 60.

    ## Known false positives
    - Logits of 100 to 1,000 during the first thousands of steps of large models trained with Muon, which may come
      down by themselves. Wait for the trend.
    - A soft-cap after the product bounds what softmax sees; `max_attn_logit` is taken before it.
    - Models that attend through a very sharp, intended lookup, such as copying tasks.

    ## Remedy
    Normalise queries and keys per head (QK-Norm); this needs training from an earlier checkpoint or a short
    re-warm-up. Without a change of architecture: lower the peak learning rate, or clip the query and key weights
    of the heads that grow (QK-Clip).
    """
    run = recorded(evidence)
    if run.format == INITIAL:
        return per_layer(_at_start(run))
    return per_layer(_fired(growth, evidence.anatomy) for growth in logit_growth(run))


def _at_start(run: Run) -> Iterator[Fired]:
    series = sampled(run, "max_attn_logit")
    level = levels(series)
    for index in sorted(np.argwhere(level > LOGIT_WATCHED).tolist(), key=lambda i: -float(level[tuple(i)])):
        head = track(run, series, tuple(index))
        message = f"max_attn_logit of {at(head.where)} is {number(head.level)} before training"
        yield Fired("warning", message, head.level, LOGIT_WATCHED, head.since(LOGIT_WATCHED), confidence=0.8)


def _normalised(where: Where, anatomy: Anatomy | None) -> bool:
    calls = anatomy.attention_calls if anatomy is not None else ()
    return any(call.qk_norm != "none" for call in calls if call.layer == where.layer and where.layer is not None)


def _severity(growth: Growth) -> Severity:
    extreme = growth.level > LOGIT_EXTREME or (growth.level > LOGIT_HIGH and growth.rising)
    return "error" if extreme else "warning"


def _fired(growth: Growth, anatomy: Anatomy | None) -> Fired:
    head = growth.track
    gains = _normalised(head.where, anatomy)
    passed = next(limit for limit in (LOGIT_EXTREME, LOGIT_HIGH, LOGIT_WATCHED) if growth.level > limit)
    return Fired(
        _severity(growth),
        f"max_attn_logit of {at(head.where)} grew from {number(head.early)} to {number(head.level)}"
        f"{' and is still rising' if growth.rising else ''}; it passed 100 at step {head.first(LOGIT_WATCHED)}"
        + ("; queries and keys are normalised there, so the gains of that norm have grown" if gains else ""),
        observed=head.level, threshold=passed, where=head.since(LOGIT_WATCHED),
        confidence=0.9 if growth.rising else 0.7,
    )
