"""The counterfactual halve_lr."""

from __future__ import annotations

from typing import Any

from stabilitylens.hooks.blackbox.restoring import set_group
from stabilitylens.hooks.counterfactuals._member import counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial
from stabilitylens.suspects._suspect import FAIR


@counterfactual(suspect="learning-rate", weight=FAIR)
def halve_lr(trial: Trial) -> None:
    """Halve every learning rate from the snapshot on.

    It speaks less than other tests: a lower learning rate makes most incidents smaller, whatever their cause, and half of one
    that is thirty times too high is still too high.
    """

    def halve(group: dict[str, Any]) -> None:
        set_group(group, {"lr": float(group["lr"]) * 0.5})

    trial.change(halve)
