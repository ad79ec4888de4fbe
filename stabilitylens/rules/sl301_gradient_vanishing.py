import numpy as np

from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._depth import against_last
from stabilitylens.rules._layers import at, number
from stabilitylens.rules._track import RECENT, levels, recorded, sampled, track
from stabilitylens.run import INITIAL

#: heuristic: gradient at a block's output against that at the last block's
RATIO_LOW = 1e-2
#: heuristic: as RATIO_LOW, but where early layers in effect no longer train
RATIO_VANISHED = 1e-4


@rule(code="SL301", needs=("resid_grad_norm",), since="0.1.0", initial=True)
def gradient_vanishing(evidence: Evidence) -> list[Fired]:
    """Gradients reach the first blocks at a size comparable to the last block's.

    ## What it flags
    The smallest `resid_grad_norm` over the blocks, divided by that of the last block, as the median of
    the last 5 samples: a warning under 0.01, an error under 0.0001. Frozen blocks and blocks that no
    gradient reached are left out; a step at which the last block's gradient is zero is too.

    ## Why it matters
    A block that receives a vanishing gradient stays near its initial weights. Adam hides this, for it
    rescales the gradient, until ε or the noise is all that is left of it.

    ## Evidence
    - Mix-LN reports vanishing gradients in the early layers of Post-LN models, and diminished ones in the deep
      layers of Pre-LN models: <https://arxiv.org/abs/2412.13795>.
    - Xiong et al. show how the placement of layer normalisation decides gradient sizes at initialisation, where in
      Post-LN they are *large near the output*: <https://arxiv.org/abs/2002.04745>.

    Both thresholds are heuristic. Only ratios between layers are used, so that loss scale and batch size
    cancel.

    ## Example
    `resid_grad_norm` of layer 0 is 2.4e-05 of that of the last block, layer 23, and under 0.01 since step 40.

    ## Known false positives
    - Encoder-decoder models early in training, while the decoder does not use the encoder yet.
    - Models with gates or residual scales that start at zero, during the first steps.

    ## Remedy
    Pre-LN or Peri-LN instead of Post-LN, or a residual scaling made for depth (DeepNorm); a longer warm-up. Check
    for a detached tensor or a saturated activation just above the block that is named.
    """
    run = recorded(evidence)
    series = sampled(run, "resid_grad_norm", RECENT)
    ratios = against_last(series)
    level = levels(ratios)
    if not np.any(level < RATIO_LOW):
        return []
    layer = track(run, ratios, (int(np.nanargmin(level)),))
    last = int(np.flatnonzero(~np.isnan(level))[-1])
    return [
        Fired(
            "error" if layer.level < RATIO_VANISHED else "warning",
            f"resid_grad_norm of {at(layer.where)} is {number(layer.level)} of that of the last block, layer {last}"
            + (" before training" if run.format == INITIAL else f"; it passed below {RATIO_LOW} at step {layer.first(RATIO_LOW, above=False)}"),
            observed=layer.level, threshold=RATIO_VANISHED if layer.level < RATIO_VANISHED else RATIO_LOW,
            where=layer.since(RATIO_LOW, above=False), confidence=0.8,
        )
    ]
