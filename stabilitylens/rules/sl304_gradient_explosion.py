import numpy as np

from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._depth import against_last
from stabilitylens.rules._layers import at, number
from stabilitylens.rules._track import RECENT, levels, recorded, sampled, track
from stabilitylens.run import INITIAL

#: heuristic: gradient at a block's output against that at the last block's; healthy placements are under 10
RATIO_HIGH = 1e2
#: heuristic: as RATIO_HIGH, but where a learning rate that suits the last block destroys the first ones
RATIO_EXPLODED = 1e4


@rule(code="SL304", needs=("resid_grad_norm",), since="0.1.0", initial=True)
def gradient_explosion(evidence: Evidence) -> list[Fired]:
    """Gradients do not grow from block to block on their way back.

    ## What it flags
    The largest `resid_grad_norm` over the blocks, divided by that of the last block, as the median of the
    last 5 samples: a warning past 100, an error past 10,000 or where it is infinite. Frozen blocks are left out. Before
    training, one forward and backward is enough.

    ## Why it matters
    A gradient that grows by a factor c a block grows by c to the power of the depth. Clipping by the global norm then
    scales everything to suit the first blocks, and the last ones hardly move; in 16 bit it overflows.

    ## Evidence
    - He et al. derive the initialisation that keeps gradients level through depth: <https://arxiv.org/abs/1502.01852>.
    - Xiong et al. derive gradient sizes by depth for Post-LN and Pre-LN: <https://arxiv.org/abs/2002.04745>.
    - OLMo 2 chooses its initialisation by the growth of gradients over depth: <https://arxiv.org/abs/2501.00656>.
    - Measured for this rule at initialisation, width 128, 64 blocks: the first block's parameters had a gradient norm
      of 0.39 to 0.60 with Post-, Pre- and Peri-LN, and of 10.9 with an output norm without QK-Norm.

    Both thresholds are heuristic. Only ratios between layers are used, so that loss scale and batch size cancel.

    ## Example
    `resid_grad_norm` of layer 0 is 3,400 times that of the last block, layer 23.

    ## Known false positives
    - Last blocks that have nothing to do yet, as with a zero-initialised output layer in the first steps.
    - Losses that are attached to early blocks as well.

    ## Remedy
    Scale the output projections of the branches by 1/√(2·layers) at initialisation, put a norm on the input of each
    branch, and normalise queries and keys. Clipping hides this and does not cure it.
    """
    run = recorded(evidence)
    ratios = against_last(sampled(run, "resid_grad_norm", RECENT))
    level = levels(ratios)
    if not np.any(level > RATIO_HIGH):
        return []
    layer = track(run, ratios, (int(np.nanargmax(level)),))
    last = int(np.flatnonzero(~np.isnan(level))[-1])
    passed = RATIO_EXPLODED if layer.level > RATIO_EXPLODED else RATIO_HIGH
    return [
        Fired(
            "error" if passed == RATIO_EXPLODED else "warning",
            f"resid_grad_norm of {at(layer.where)} is {number(layer.level)} times that of the last block, layer {last}"
            + (" before training" if run.format == INITIAL else f"; it passed {passed:,.0f} at step {layer.first(passed)}"),
            observed=layer.level, threshold=passed, where=layer.since(passed), confidence=0.8,
        )
    ]
