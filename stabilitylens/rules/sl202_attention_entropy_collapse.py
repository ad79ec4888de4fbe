from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.findings import SEVERITIES, Severity
from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._layers import at, number, per_layer
from stabilitylens.rules._logits import LOGIT_WATCHED
from stabilitylens.rules._track import Track, levels, recorded, sampled, track
from stabilitylens.rules._trend import GREW
from stabilitylens.run import INITIAL, Run, Series

#: heuristic, after the entropy collapse of https://arxiv.org/abs/2303.06296: a row spreads over n^0.1 of its n keys
RATIO_LOW = 0.1
#: heuristic: as many as one key; reached in the runs whose logits passed 300 (see Evidence)
RATIO_COLLAPSED = 0.03


@rule(code="SL202", needs=("attn_entropy_ratio",), since="0.1.0", initial=True)
def attention_entropy_collapse(evidence: Evidence) -> list[Fired]:
    """Attention spreads over more than one key in most heads of every layer.

    ## What it flags
    A layer in which the `attn_entropy_ratio` of a head is under 0.1, as the median of the last 5 samples.

    - It is a warning under 0.1 and an error under 0.03 where that holds for at least half of the layer's heads,
      or for a head whose `max_attn_logit` is past 100 as well.
    - It is information where only a few heads are sharp and no logits are large.
    - It is one level milder where the ratio was as low in the first samples: then it did not collapse in this run.

    ## Why it matters
    A row whose entropy is near zero copies one key. Almost no gradient passes through its softmax, so the
    head stops learning what to attend to, and the model reacts to small changes of the weights with jumps.

    ## Evidence
    - Zhai et al. observe that attention entropy collapses together with training instability, bound it by the
      spectral norm of the query-key product, and prevent it with σReparam: <https://arxiv.org/abs/2303.06296>.
    - Measured for this rule: 4 layers of width 64 on characters, 300 steps of AdamW, two seeds. The mean ratio ended
      at 0.24 and 0.20 at a learning rate of 0.01, at 0.02 and 0.03 at 0.03, and at 0.000 at 0.1, with
      the largest logits near 50, 400 and 20,000.

    Both thresholds are heuristic. The ratio divides by the log of the number of keys that a row sees, so that a
    longer sequence does not look like a change.

    ## Example
    `attn_entropy_ratio` of layer 2, head 1 fell from 0.83 to 0.012; it passed below 0.1 at step 90; heads of
    that layer under 0.1: 4 of 4.

    ## Known false positives
    - Heads that learn to look at the previous token or at the first one are sharp in healthy models; hence the
      milder severity where they are few.
    - Fine-tuning starts from heads that are sharp already.
    - Rows of very few visible keys, as in narrow sliding windows.

    ## Remedy
    Look at `max_attn_logit` first: where it grows, QK-Norm, QK-Clip or a lower peak learning rate. σReparam
    (a spectral normalisation of the weights) bounds the entropy directly.
    """
    run = recorded(evidence)
    series = sampled(run, "attn_entropy_ratio")
    return per_layer(sorted(_collapsed(run, series), key=lambda f: f.observed or 0.0))


def _collapsed(run: Run, series: Series) -> Iterator[Fired]:
    level = levels(series)
    large = _large_logits(run, level.shape)
    for index in np.ndindex(level.shape[:1]):
        layer = np.atleast_1d(level[index])
        if np.any(layer < RATIO_LOW):
            worst = int(np.nanargmin(layer))
            head = track(run, series, (*index, *((worst,) if level.ndim > 1 else ())))
            yield _fired(head, layer, np.atleast_1d(large[index]), run.format == INITIAL)


def _large_logits(run: Run, shape: tuple[int, ...]) -> ndarray:
    """Heads whose logits are past the watched level; none where they were not recorded alike."""
    if run.why_missing("max_attn_logit") is not None or run["max_attn_logit"].values.shape[1:] != shape:
        return np.zeros(shape, dtype=bool)
    return np.asarray(levels(run["max_attn_logit"]) > LOGIT_WATCHED)


def _severity(layer: Float[ndarray, " head"], large: ndarray, fell: bool) -> Severity:
    typical = float(np.nanquantile(layer, 0.5, method="lower"))
    decisive = float(min([typical, *layer[large & (layer < RATIO_LOW)]]))
    rank = (decisive < RATIO_LOW) + (decisive < RATIO_COLLAPSED) - (not fell)
    return next(severity for severity, of in SEVERITIES.items() if of == max(0, rank))


def _fired(head: Track, layer: Float[ndarray, " head"], large: ndarray, initial: bool) -> Fired:
    fell = bool(head.early >= GREW * head.level and head.early > head.level)
    severity = _severity(layer, large, fell)
    low, seen = int(np.sum(layer < RATIO_LOW)), int(np.sum(~np.isnan(layer)))
    heads = f"heads of that layer under {RATIO_LOW}: {low} of {seen}"
    if initial:
        message = f"attn_entropy_ratio of {at(head.where)} is {number(head.level)} before training; {heads}"
    else:
        moved = f"fell from {number(head.early)} to" if fell else f"began at {number(head.early)} and is"
        began = f"it passed below {RATIO_LOW} at step {head.first(RATIO_LOW, above=False)}"
        message = f"attn_entropy_ratio of {at(head.where)} {moved} {number(head.level)}; {began}; {heads}"
    return Fired(
        severity, message, observed=head.level, threshold=RATIO_COLLAPSED if head.level < RATIO_COLLAPSED else RATIO_LOW,
        where=head.since(RATIO_LOW, above=False), confidence={"info": 0.3, "warning": 0.7, "error": 0.9}[severity],
    )
