"""The counterfactual other_beta2."""

from __future__ import annotations

from typing import Any

from stabilitylens.hooks.blackbox.restoring import set_group
from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial

#: what large language models are trained with (GPT-3, https://arxiv.org/abs/2005.14165), and a lower one where it is that already.
#: *Heuristic*, the second.
USUAL, LOWER = 0.95, 0.9


@counterfactual(suspect="stale-second-moment")
def other_beta2(trial: Trial) -> None:
    """Lower Adam's β2 from the snapshot on: to 0.95, or to 0.9 where it is 0.95 or less already.

    The second moment then follows the gradient within 20 steps, or 10, instead of 1,000 at 0.999, so that it cannot be
    stale for long: <https://arxiv.org/abs/2304.13013>.
    """
    betas = [float(group["betas"][1]) for group in trial.groups() if "betas" in group]
    if not betas or max(betas) <= LOWER:
        raise NotApplicable("no optimizer has a β2" if not betas else f"β2 is {max(betas):g} already")

    def lower(group: dict[str, Any]) -> None:
        if "betas" in group:
            first, second, *rest = group["betas"]
            target = USUAL if float(second) > USUAL else LOWER
            set_group(group, {"betas": (first, min(target, float(second)), *rest)})

    trial.change(lower)
