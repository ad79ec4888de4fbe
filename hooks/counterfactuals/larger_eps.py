"""The counterfactual larger_eps."""

from __future__ import annotations

from typing import Any

from stabilitylens.hooks.blackbox.restoring import set_group
from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial

#: the largest that is in common use (Llama 2, https://arxiv.org/abs/2307.09288), and by how much more where it is that already.
#: *Heuristic*, the second.
USUAL, FACTOR = 1e-5, 10.0


@counterfactual()
def larger_eps(trial: Trial) -> None:
    """Raise Adam's ε from the snapshot on: to 1e-5, or tenfold where it is 1e-5 or more already.

    Parameters whose gradients are that small then take smaller steps. It makes every step smaller a little, so it tells no cause.
    """
    if not any(isinstance(group.get("eps"), (int, float)) for group in trial.groups()):
        raise NotApplicable("no optimizer has an ε")

    def raise_(group: dict[str, Any]) -> None:
        if isinstance(group.get("eps"), (int, float)):
            set_group(group, {"eps": USUAL if group["eps"] < USUAL else FACTOR * group["eps"]})

    trial.change(raise_)
