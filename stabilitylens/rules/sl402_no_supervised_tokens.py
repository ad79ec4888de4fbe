import numpy as np

from stabilitylens.findings import Where
from stabilitylens.rules import Evidence, Fired, Lacks, rule
from stabilitylens.rules._track import recorded
from stabilitylens.run import Run

#: heuristic: share of steps from which on much of the data is not learned from
OFTEN = 0.01


@rule(code="SL402", needs=("loss",), since="0.1.0")
def no_supervised_tokens(evidence: Evidence) -> list[Fired]:
    """Every batch has tokens that count for the loss.

    ## What it flags
    Steps whose loss is NaN while the gradient norm is exactly 0: a warning, an error where that is more than 1 % of
    the steps. A mean over no token is 0/0, and its gradient is zero, so the weights are unharmed.

    ## Why it matters
    It looks like divergence and is not: nothing has to be rolled back. But such a step moves the weights by old
    momentum alone, a NaN in a running mean of the loss stays there, and the data are not what they were meant to be.

    ## Evidence
    - Cross-entropy over ignored targets alone is NaN: <https://github.com/pytorch/pytorch/issues/70348>, and
      <https://github.com/pytorch/pytorch/issues/116349>. Checked for this rule: the gradient is exactly 0.

    The share of 1 % is heuristic.

    ## Example
    3 of 2,000 steps had a loss of NaN and a gradient of exactly 0, first at step 412.

    ## Known false positives
    - A gradient norm that a trainer logs as 0 where it has none.

    ## Remedy
    Look at the labels of the steps named: prompts that fill the whole window, or truncation before the answer. Drop
    samples without labels, or divide the summed loss by max(1, tokens).
    """
    run = recorded(evidence)
    steps, loss, norm = _side_by_side(run)
    if np.count_nonzero(~np.isnan(norm)) < 8:
        raise Lacks(f"grad_norm has {np.count_nonzero(~np.isnan(norm))} samples, fewer than the 8 needed")
    hit = np.flatnonzero(np.isnan(loss) & (norm == 0))
    if not len(hit):
        return []
    share = len(hit) / len(steps)
    first, last = int(steps[hit[0]]), int(steps[hit[-1]])
    return [
        Fired(
            "error" if share > OFTEN else "warning",
            f"{len(hit):,} of {len(steps):,} steps had a loss of NaN and a gradient of exactly 0, first at step {first}: "
            "no token counted for the loss, and the weights are unharmed",
            observed=share, threshold=OFTEN if share > OFTEN else 0.0, where=Where(steps=(first, last)), confidence=0.9,
        )
    ]


def _side_by_side(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, loss and the gradient norm at the steps that have both."""
    loss = run["loss"]
    norms = [run.series[n] for n in ("grad_norm", "grad_norm_clipped") if n in run.series and run.series[n].observed()]
    if loss.values.ndim != 1:
        raise Lacks("the loss of each step")
    if not norms:
        raise Lacks("grad_norm was not recorded")
    steps, a, b = np.intersect1d(loss.steps, norms[0].steps, return_indices=True)
    return steps, loss.values[a], norms[0].values[b]
