from stabilitylens.findings import Where
from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._layers import number
from stabilitylens.rules._track import recorded, sampled, track
from stabilitylens.rules._trend import change

#: heuristic: nat that log_z moves from its start before it counts
DRIFT = 10.0
#: heuristic: nat over the last half of the run that count as still moving
MOVING = 1.0
#: neighbouring bfloat16 numbers (8 significant bits) are 0.5 apart from here on
COARSE = 64.0


@rule(code="SL401", needs=("log_z",), since="0.1.0")
def output_logit_drift(evidence: Evidence) -> list[Fired]:
    """The output logits stay where they are: their normaliser does not drift.

    ## What it flags
    `log_z` whose last level is 10 nat or more from its first and that still moves, by at least 1 nat over the
    last half of the run with 95 % confidence: information. It is a warning where |`log_z`| is past 64, from
    where on neighbouring bfloat16 numbers are 0.5 apart.

    ## Why it matters
    The cross-entropy does not change when a constant is added to all logits, so nothing in it holds them in
    place. Large logits are rounded coarsely in 16 bit, and the loss is a small difference of large numbers.

    ## Evidence
    - PaLM adds a loss of 1e-4 · log²Z to keep the normaliser near zero: <https://arxiv.org/abs/2204.02311>.
    - OLMo 2 lists such a z-loss among its measures for stability: <https://arxiv.org/abs/2501.00656>.
    - Wortsman et al. reproduce the divergence of output logits in small models: <https://arxiv.org/abs/2309.14322>.

    10 and 1 nat are heuristic. 64 follows from bfloat16's 8 significant bits.

    ## Example
    `log_z` moved from 10.8 to -71.5 nat and is still falling.

    ## Known false positives
    - The first thousand steps, in which the logits leave their initial values.
    - Models trained to the end with logits at a large offset, in float32.

    ## Remedy
    A z-loss of 1e-5 to 1e-4 · log²Z. Compute the loss in float32.
    """
    run = recorded(evidence)
    series = sampled(run, "log_z")
    drift = track(run, series, (0,) * len(series.axes))
    if not len(drift.values):
        return []
    moved = change(drift)
    if not (abs(drift.level - drift.early) >= DRIFT and moved.certain and abs(moved.middle) >= MOVING):
        return []
    coarse = abs(drift.level) > COARSE
    steps = (int(drift.steps[0]), int(drift.steps[-1]))
    return [
        Fired(
            "warning" if coarse else "info",
            f"log_z moved from {number(drift.early)} to {number(drift.level)} nat and is still "
            f"{'rising' if moved.middle > 0 else 'falling'}",
            observed=drift.level, threshold=COARSE if coarse else DRIFT, confidence=0.7,
            where=Where(steps=steps),
        )
    ]
