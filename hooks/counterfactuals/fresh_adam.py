"""The counterfactual fresh_adam."""

from __future__ import annotations

from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial


@counterfactual(suspect="stale-second-moment")
def fresh_adam(trial: Trial) -> None:
    """Begin the moments and the step count of Adam and its kin anew at the snapshot.

    A second moment that had become far smaller than the gradient is gone with it: <https://arxiv.org/abs/2304.13013>. The first
    steps after it are those of a cold optimizer.
    """
    with_moments = [o for o in trial.optimizers if any("exp_avg_sq" in state for state in o.state.values())]
    if not with_moments:
        raise NotApplicable("no optimizer has a second moment")
    for optimizer in with_moments:
        optimizer.state.clear()
