"""The counterfactual steady_lr."""

from __future__ import annotations

from typing import Any

from stabilitylens.hooks.blackbox.restoring import set_group
from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial
from stabilitylens.suspects._suspect import DECISIVE

#: a learning rate that moved by less than this share has not changed enough to be tested. *Heuristic*: a schedule's own slope.
MOVED = 0.1


@counterfactual(suspect="learning-rate", weight=DECISIVE)
def steady_lr(trial: Trial) -> None:
    """Keep the learning rates of the oldest step that was kept: the schedule does not move.

    It tests a schedule that jumped, by mistake or by design, in the steps before the incident.
    """
    oldest: dict[int, float] = {}
    moved = False
    for step in trial.evidence.steps:
        for i, groups in trial.evidence.groups(step).items():
            for group, values in zip(trial.optimizers[i].param_groups, groups, strict=True):
                if "lr" in values:
                    first = oldest.setdefault(id(group), float(values["lr"]))
                    moved = moved or abs(float(values["lr"]) - first) > MOVED * abs(first)
    if not moved:
        raise NotApplicable(f"no learning rate moved by more than {MOVED:.0%} in the steps that were kept")

    def keep(group: dict[str, Any]) -> None:
        set_group(group, {"lr": oldest.get(id(group), float(group["lr"]))})

    trial.change(keep)
