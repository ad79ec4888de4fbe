from collections.abc import Iterator

import numpy as np

from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._layers import at, per_layer
from stabilitylens.rules._track import RECENT, Track, recorded, sampled, track
from stabilitylens.run import Run, Series

#: any row without a key is one too many for kernels that answer 0/0
ROWS = 0.0


@rule(code="SL204", needs=("masked_rows",), since="0.1.0", initial=True)
def fully_masked_rows(evidence: Evidence) -> list[Fired]:
    """The mask leaves every query at least one key.

    ## What it flags
    Attention calls with query rows that see no key: information, and an error where the loss, a gradient norm or an
    activation was NaN or infinite at a step at which there were such rows.

    ## Why it matters
    Softmax over no key is 0/0. Where a kernel answers NaN, the forward may hide it, for the row is padding and
    not in the loss, while the backward spreads it into every gradient of the layer. It looks like bad data or a learning
    rate that is too high.

    ## Evidence
    - A fully masked row makes all gradients of the projections NaN while the loss stays finite:
      <https://github.com/pytorch/pytorch/issues/41508>. Checked for this rule: with attention weights asked
      for, so in PyTorch's MultiheadAttention; without them gradients are clean.
    - The same in a language model's code: <https://github.com/allenai/OLMo/issues/322>.

    ## Example
    24 query rows in layer 0 saw no key in one sampled step; the gradient norm was not finite at step 40.

    ## Known false positives
    - Padding on the left under a causal mask, whose rows see nothing by design. Kernels that return zeros there do no
      harm; that is information only.

    ## Remedy
    Let padding rows see themselves, or set the row's scores to a finite number instead of −inf before softmax.
    Leave such rows out of the loss as well.
    """
    run = recorded(evidence)
    return per_layer(_masked(run, sampled(run, "masked_rows", RECENT)))


def _masked(run: Run, series: Series) -> Iterator[Fired]:
    per_call = series.values.reshape(*series.values.shape[:2], -1)
    for call in range(per_call.shape[1]) if series.values.ndim > 1 else ():
        index = (call, *(0,) * (series.values.ndim - 2))
        rows = track(run, series, index)
        hit = rows.steps[rows.values > ROWS]
        if len(hit):
            yield _fired(run, rows, hit)


def _fired(run: Run, rows: Track, hit: np.ndarray) -> Fired:
    most = float(np.max(rows.values))
    place = at(rows.since(ROWS))
    message = f"{most:,.0f} query rows of a head of {place} saw no key in one sampled step, and some in {len(hit)} of {len(rows.values)}"
    broken = _not_finite(run, set(hit.tolist()))
    if broken is None:
        return Fired("info", message, most, ROWS, rows.since(ROWS), confidence=0.5)
    what, step = broken
    return Fired("error", f"{message}; {what} was not finite at step {step}", most, ROWS, rows.since(ROWS), confidence=0.8)


def _not_finite(run: Run, steps: set[int]) -> tuple[str, int] | None:
    """The first of loss, gradient norm and activations that was not finite at one of the steps."""
    for name in ("loss", "grad_norm", "grad_norm_clipped"):
        series = run.series.get(name)
        if series is not None and series.values.ndim == 1:
            bad = [int(s) for s in series.steps[~np.isfinite(series.values)] if int(s) in steps]
            if bad:
                return name, bad[0]
    series = run["nonfinite_count"] if "nonfinite_count" in run else None
    if series is not None and series.values.ndim == 2:
        worst = np.nanmax(np.nan_to_num(series.values), axis=1, initial=0.0)
        bad = [int(s) for s in series.steps[worst > 0] if int(s) in steps]
        return ("an activation", bad[0]) if bad else None
    return None
