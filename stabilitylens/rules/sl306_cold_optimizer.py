import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.findings import Where
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._layers import number
from stabilitylens.rules._track import median, recorded, sampled

#: Adam's first step is the sign of the gradient, so its RMS over the learning rate is 1; heuristic: a few entries without gradient
ONE = 0.03
#: heuristic: layers that have to be at one together
SHARE = 0.8
#: heuristic: what the level before has to be under for a return to one to be a restart
BEFORE = 0.9


@rule(code="SL306", needs=("update_rms",), since="0.1.0")
def cold_optimizer(evidence: Evidence) -> list[Fired]:
    """A resumed run goes on with the optimizer's moments, not with empty ones.

    ## What it flags
    `update_rms` within 3 % of 1.0 in at least 80 % of the blocks at once, later than the first step of training, when it
    was under 0.9 before, or when the record begins there: an error. The first step of Adam from empty moments moves
    every entry that has a gradient by the learning rate, so the value is that sharp.

    ## Why it matters
    Empty moments make each entry move by the full learning rate in the direction of one batch's sign, as in the first step
    of training, but at the learning rate of the middle of the schedule and without its warm-up. The loss jumps and
    takes hundreds of steps to come back.

    ## Evidence
    - With bias correction the first step of Adam is g/|g|: <https://arxiv.org/abs/1412.6980>.
    - Checked for this rule: a resume that restores weights alone has an `update_rms` of 0.996 to 1.000 at its first step,
      which decays after it.

    The margins are heuristic.

    ## Example
    `update_rms` was 1.000 in 24 of 24 blocks at step 5,001, after 0.21.

    ## Known false positives
    - A change of optimizer in the middle of training, or moments that are reset on purpose.
    - Optimizers whose steps all have the size of the learning rate, such as Lion; their level before is 1 as well, so
      only a record that begins late can be mistaken.

    ## Remedy
    Save and restore the optimizer's state with the model's. If it is lost, warm the learning rate up again.
    """
    run, optimizer = recorded(evidence), (evidence.recipe.optimizer or "") if evidence.recipe is not None else ""
    series = sampled(run, "update_rms")
    if series.values.ndim != 2:
        raise Lacks("update_rms by block")
    if optimizer and not any(kind in optimizer.lower() for kind in ("adam", "lamb")):
        raise Lacks(f"steps as Adam takes them: the optimizer is {optimizer}")
    middle = median(series.values, 1)
    at_one = _share_at_one(series.values) >= SHARE
    return [_fired(series.steps, series.values, middle, i) for i in np.flatnonzero(at_one).tolist() if _is_cold(series.steps, middle, i)]


def _share_at_one(values: Float[ndarray, "step layer"]) -> Float[ndarray, " step"]:
    seen = np.sum(~np.isnan(values), axis=1)
    near = np.sum(np.abs(values - 1.0) <= ONE, axis=1)
    return np.asarray(np.where(seen > 0, near / np.maximum(seen, 1), 0.0), dtype=np.float64)


def _is_cold(steps: ndarray, middle: Float[ndarray, " step"], i: int) -> bool:
    """Whether step ``i``, at one, is a restart: after lower steps, or at the late beginning of a record that decays."""
    before = middle[:i][~np.isnan(middle[:i])]
    if len(before):
        return bool(before[-1] < BEFORE)
    after = middle[i + 1 :][~np.isnan(middle[i + 1 :])]
    return bool(steps[i] > 1 and len(after) and after[0] < BEFORE)


def _fired(steps: ndarray, values: Float[ndarray, "step layer"], middle: Float[ndarray, " step"], i: int) -> Fired:
    before = middle[:i][~np.isnan(middle[:i])]
    near, seen = int(np.sum(np.abs(values[i] - 1.0) <= ONE)), int(np.sum(~np.isnan(values[i])))
    came = f", after {number(float(before[-1]))}" if len(before) else ", where the record begins"
    step = int(steps[i])
    return Fired(
        "error", f"update_rms was {middle[i]:.3f} in {near} of {seen} blocks at step {step}{came}",
        observed=float(middle[i]), threshold=1.0, where=Where(steps=(step, step)), confidence=0.9 if len(before) else 0.7,
    )
