import numpy as np

from stabilitylens.findings import Severity, Where
from stabilitylens.rules import Evidence, Fired, rule
from stabilitylens.rules._track import recorded, sampled
from stabilitylens.run import Run

#: heuristic: steps at the beginning, in which a scaler looks for its scale
WARM_UP = 100
#: heuristic: a scaler that tries a larger scale every 2,000 steps skips 0.05 %
OFTEN = 0.01
#: heuristic: from here on the run hardly learns
MOSTLY = 0.5
#: a loss scale of one or less scales nothing: gradients are not finite at any scale
FLOOR = 1.0


@rule(code="SL503", needs=("loss",), since="0.1.0")
def steps_skipped(evidence: Evidence) -> list[Fired]:
    """The optimizer takes its steps, but for the few that a gradient scaler skips.

    ## What it flags
    Of the steps after the first 100 (or from where skipping began, if it never stopped since), more than 1 % without an
    update: a warning; more than half of them, or a
    `loss_scale` that came down to 1: an error. The first steps of a scaler, and one skip in 2,000 steps, are as they
    should be.

    ## Why it matters
    A scaler skips a step when a gradient is not finite, and halves the scale. Skipping goes on when gradients are not
    finite for another reason than the scale; the loss then looks flat, and schedule and tokens run on.

    ## Evidence
    - Micikevicius et al. describe dynamic loss scaling and its skipped steps: <https://arxiv.org/abs/1710.03740>.
    - Users ask whether skips after the first steps are normal: <https://github.com/deepspeedai/DeepSpeed/issues/931>. PyTorch's
      scaler does not say when it skips: <https://github.com/pytorch/pytorch/issues/67590>.

    All shares are heuristic.

    ## Example
    The optimizer took no step in 1,310 of 9,900 steps, first at step 3,204; the loss scale came down to 0.5.

    ## Known false positives
    - A loop that skips bad batches on purpose.
    - Gradient accumulation that calls `lens.step` for every micro-batch.

    ## Remedy
    Find the first block with a non-finite value (`nonfinite_count`); train in bfloat16; look at the learning rate.
    """
    run = recorded(evidence)
    steps = sampled(run, "loss").steps
    skipped = np.array(sorted({event.step for event in run.events if event.kind == "step_skipped"}), dtype=np.int64)
    later = _since(steps, skipped, int(steps[0]) + WARM_UP)
    total, missed = int(np.sum(steps >= later)), skipped[skipped >= later]
    share = len(missed) / total if total else 0.0
    floor = _floor(run)
    if share <= OFTEN and floor is None:
        return []
    return [_fired(missed, total, share, floor, int(steps[-1]))]


def _since(steps: np.ndarray, skipped: np.ndarray, later: int) -> int:
    """The step from which on skips count: after the first 100, or from where they began if they never stopped since."""
    took = ~np.isin(steps, skipped)
    at = int(np.searchsorted(steps, later))
    if at == len(steps) or took[at]:
        return later
    before = np.flatnonzero(took[:at])
    return int(steps[before[-1] + 1] if len(before) else steps[0])


def _floor(run: Run) -> tuple[float, int] | None:
    """The lowest loss scale at the end of the run and since when, if it is at the floor and came down to it."""
    if run.why_missing("loss_scale") is not None or run["loss_scale"].axes:
        return None
    series = run["loss_scale"]
    seen = ~np.isnan(series.values)
    values, steps = series.values[seen], series.steps[seen]
    if values[-1] > FLOOR or np.max(values) <= FLOOR:
        return None
    return float(values[-1]), int(steps[np.flatnonzero(values > FLOOR)[-1] + 1])


def _fired(missed: np.ndarray, total: int, share: float, floor: tuple[float, int] | None, end: int) -> Fired:
    parts, first = [], end
    if len(missed):
        first = int(missed[0])
        parts.append(f"the optimizer took no step in {len(missed):,} of {total:,} steps, first at step {first}")
    if floor is not None:
        first = min(first, floor[1])
        parts.append(f"the loss scale came down to {floor[0]:g} at step {floor[1]}")
    severity: Severity = "error" if floor is not None or share > MOSTLY else "warning"
    return Fired(
        severity, "; ".join(parts), observed=share, threshold=MOSTLY if share > MOSTLY else OFTEN,
        where=Where(steps=(first, end)), confidence=0.9,
    )
