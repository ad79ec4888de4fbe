from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._layers import at, number, per_layer
from stabilitylens.rules._logits import LOGIT_WATCHED
from stabilitylens.rules._track import Track, levels, median, recorded, sampled, track
from stabilitylens.rules._trend import GREW, held, rising
from stabilitylens.run import Run, Series

#: heuristic: growth of the product of both norms: each of them fourfold
PRODUCT_GROWTH = 16.0
#: heuristic: growth up to which values count as flat
VALUES_FLAT = 2.0
#: heuristic: a layer against the median layer; a public case had 590 against 18
OUTLIER = 10.0
#: heuristic: layers that a median needs
OUTLIER_LAYERS = 4
#: heuristic: steps that are enough to see slow growth by
SAMPLES = 1000


@rule(code="SL203", needs=("query_norm", "key_norm", "value_norm"), since="0.1.0")
def query_key_growth(evidence: Evidence) -> list[Fired]:
    """Query and key norms grow no faster than values, and alike in all layers.

    ## What it flags
    Per attention call, by the median over its heads:

    - The product of `query_norm` and `key_norm` grew sixteenfold in this run and is rising or has stayed up,
      while `value_norm` at most doubled, and ‖q‖·‖k‖·scale, the logit of a usual query and key that point the same way,
      is past 100: a warning. Single queries and keys are longer, and their logits larger.
      Where the scale is not known the last part is left out, and confidence is lower.
    - `query_norm` or `key_norm` is 10 times that of the median layer: a warning if it at least doubled in this run,
      else information.

    ## Why it matters
    Nothing in plain attention bounds the norms of queries and keys, and logits grow with their product. Values are
    the control: they see the same inputs and learning rate, so growth of all three points elsewhere, and growth
    of queries and keys alone points at the logits.

    ## Evidence
    - Henry et al. normalise queries and keys so that logits are bounded: <https://arxiv.org/abs/2010.04245>.
    - Chameleon reports slow norm growth as the source of its divergences, and uses QK-Norm:
      <https://arxiv.org/abs/2405.09818>.
    - Wortsman et al. relate logit growth to the norms of queries and keys at high learning rates:
      <https://arxiv.org/abs/2309.14322>.

    All thresholds here are heuristic, except that 100 is where Kimi K2 starts to clip logits
    (<https://arxiv.org/abs/2507.20534>).

    ## Example
    In layer 5 `query_norm` × `key_norm` grew 210-fold while `value_norm` grew 1.3-fold; a usual query and key, aligned,
    make a logit of 480.

    ## Known false positives
    - Biases on the key projection make the keys of some layers large by design; this shows as an outlier that did
      not grow, which is information only.
    - A run that starts from tiny weights and ends early.

    ## Remedy
    QK-Norm. Without it: a lower peak learning rate, weight decay on the query and key projections, or QK-Clip.
    """
    run = recorded(evidence)
    query, key, value = (_by_call(sampled(run, f"{what}_norm")) for what in ("query", "key", "value"))
    outliers = [f for series in (query, key) for f in _outliers(run, series)]
    return per_layer([*_outgrown(run, query, key, value), *outliers])


def _by_call(series: Series) -> Series:
    """Median over heads, of at most ``SAMPLES`` steps."""
    kept = np.unique(np.linspace(0, len(series) - 1, SAMPLES).astype(int))
    values = series.values[kept]
    heads = tuple(range(2, values.ndim))
    return replace(
        series, steps=series.steps[kept], values=median(values, heads) if heads else values, axes=series.axes[:1]
    )


def _scale(run: Run, call: int) -> float | None:
    anatomy = run.header.anatomy
    if anatomy is None:
        return None
    scale = anatomy.attention_calls[call].scale if call < len(anatomy.attention_calls) else None
    scale = scale or anatomy.attention_scale
    return scale or (anatomy.d_head**-0.5 if anatomy.d_head else None)


def _product(query: Track, key: Track) -> Track:
    steps, of_query, of_key = np.intersect1d(query.steps, key.steps, return_indices=True)
    return Track(query.where, steps, query.values[of_query] * key.values[of_key])


def _outgrown(run: Run, query: Series, key: Series, value: Series) -> Iterator[Fired]:
    shape = min(query.values.shape[1:], key.values.shape[1:], value.values.shape[1:])
    for index in np.ndindex(shape):
        product = _product(track(run, query, index), track(run, key, index))
        values = track(run, value, index)
        if len(product.values) and len(values.values):
            fired = _judge(product, values, _scale(run, index[0] if index else 0))
            yield from [fired] if fired else []


def _judge(product: Track, values: Track, scale: float | None) -> Fired | None:
    with np.errstate(all="ignore"):
        growth, flat = np.divide(product.level, product.early), np.divide(values.level, values.early)
    bound = product.level * scale if scale else None
    grown = growth >= PRODUCT_GROWTH and flat <= VALUES_FLAT and (rising(product) or held(product))
    if not grown or (bound is not None and bound <= LOGIT_WATCHED):
        return None
    where = product.since(PRODUCT_GROWTH * product.early)
    possible = f"; a usual query and key, aligned, make a logit of {number(bound)}" if bound is not None else ""
    return Fired(
        "warning",
        f"query_norm × key_norm in {at(where)} grew {number(growth)}-fold while value_norm grew "
        f"{number(flat)}-fold{possible}",
        observed=float(growth), threshold=PRODUCT_GROWTH, where=where, confidence=0.8 if bound is not None else 0.5,
    )


def _outliers(run: Run, series: Series) -> Iterator[Fired]:
    level = levels(series)
    if level.ndim != 1 or np.sum(~np.isnan(level)) < OUTLIER_LAYERS:
        return
    middle = float(np.nanmedian(level))
    for call in np.flatnonzero(level >= OUTLIER * middle) if middle > 0 else ():
        norm = track(run, series, (int(call),))
        grew = norm.level >= GREW * norm.early
        where = norm.since(OUTLIER * middle)
        yield Fired(
            "warning" if grew else "info",
            f"{series.name.partition('/')[0]} of {at(where)} is {number(norm.level)}, and {number(middle)} in the "
            f"median layer; it started at {number(norm.early)}",
            observed=norm.level, threshold=OUTLIER * middle, where=where, confidence=0.7 if grew else 0.3,
        )
