import numpy as np
from jaxtyping import Float
from numpy import ndarray

from stabilitylens.findings import Where
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._track import MIN_SAMPLES, recorded
from stabilitylens.run import Run

#: heuristic: so many updates in a row, up to the end of the run, are no accident
LEAST = MIN_SAMPLES


@rule(code="SL307", needs=("loss",), since="0.1.0")
def no_gradient(evidence: Evidence) -> list[Fired]:
    """Gradients reach the parameters before the optimizer steps.

    ## What it flags
    The last 8 updates or more, up to the end of the run, found no gradient in any trainable parameter: its norm was
    exactly 0, or there was none at all and no parameter moved at a learning rate above 0. An error. Skipped steps and
    those whose loss is 0 or not finite say nothing of it.

    ## Why it matters
    Nothing is learned. No error is raised, the loss wanders with the data, and the curves look like those of a learning
    rate that is too low.

    ## Evidence
    - An optimizer leaves a parameter without gradient alone, and takes a step with a gradient of 0 as with any other,
      so that decay and old momentum go on: <https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html>.
    - Reentrant checkpointing gives no gradients where no input of the checkpointed part requires one:
      <https://docs.pytorch.org/docs/stable/checkpoint.html>.

    The number of 8 is heuristic.

    ## Example
    No gradient reached the parameters in the last 1,000 of 1,000 updates, since step 1: none of them moved.

    ## Known false positives
    - A loss that is satisfied and has no slope there: a hinge, or advantages that are all 0.
    - A trainer that logs a norm of 0 where it has none.

    ## Remedy
    Call `zero_grad()` after `step()` or before the forward, never between backward and `step()`. Look for a `detach()`,
    a `no_grad()` or an `item()` between the parameters and the loss, and at `requires_grad`. With frozen embeddings and
    reentrant checkpointing call `model.enable_input_require_grads()` or use `use_reentrant=False`.
    """
    run = recorded(evidence)
    steps, without, norm = _judged(run)
    if len(steps) < LEAST:
        raise Lacks(f"grad_norm, or update_ratio in its place, has {len(steps)} samples, fewer than the {LEAST} needed")
    reached = np.flatnonzero(~without)
    first = int(reached[-1]) + 1 if len(reached) else 0
    count = len(steps) - first
    if count < LEAST:
        return []
    how = "the gradient norm was exactly 0" if norm[-1] == 0 else "none of them moved"
    return [
        Fired(
            "error",
            f"no gradient reached the parameters in the last {count:,} of {len(steps):,} updates, since step {steps[first]}: {how}",
            observed=float(count), threshold=float(LEAST), where=Where(steps=(int(steps[first]), int(steps[-1]))), confidence=0.9,
        )
    ]


def _judged(run: Run) -> tuple[ndarray, ndarray, Float[ndarray, " step"]]:
    """Of the steps that tell: their numbers, whether there was no gradient, and its norm where there is one."""
    loss = run["loss"]
    if loss.values.ndim != 1:
        raise Lacks("the loss of each step")
    skipped = [event.step for event in run.events if event.kind == "step_skipped"]
    steps = loss.steps[np.isfinite(loss.values) & (loss.values != 0) & ~np.isin(loss.steps, skipped)]
    norm = np.fmax(_largest(run, "grad_norm", steps), _largest(run, "grad_norm_clipped", steps))
    moved = np.fmax(_largest(run, "update_ratio/layer", steps), _largest(run, "update_ratio/group", steps))
    still = (moved == 0) & (_largest(run, "lr", steps) > 0)
    without = (norm == 0) | (np.isnan(norm) & still)
    told = without | (norm > 0) | (moved > 0)
    return steps[told], without[told], norm[told]


def _largest(run: Run, name: str, steps: ndarray) -> Float[ndarray, " step"]:
    """The largest value of a series at each of some steps; NaN where it has none."""
    out = np.full(len(steps), np.nan)
    if name in run.series:
        series = run.series[name]
        _, at, place = np.intersect1d(series.steps, steps, return_indices=True)
        where = tuple(range(1, series.values.ndim))
        out[place] = np.fmax.reduce(series.values[at], axis=where, initial=np.nan) if where else series.values[at]
    return out
