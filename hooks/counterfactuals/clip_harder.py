"""The counterfactual clip_harder."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial
from stabilitylens.hooks.optimizers import parameters_of


@counterfactual()
def clip_harder(trial: Trial) -> None:
    """Clip the norm of all gradients of an optimizer to at most the median of those that it saw before the incident.

    Where the loop clips to less already there is nothing to try. It helps against single large gradients whatever
    makes them, so it tells no cause. A spike of the gradient itself stays what it is; what it does to the weights does not.
    """
    usual = trial.usual_norm
    if usual is None:
        raise NotApplicable("no gradient norm was seen before the incident")
    done: list[float] = []

    def clip(optimizer: Optimizer) -> None:
        parameters = [p for p in parameters_of(optimizer) if p.grad is not None]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, usual))
        done.extend([norm] if norm > usual * 1.01 else [])

    def check() -> None:
        if not done:
            raise NotApplicable(f"every gradient norm that the optimizer saw was {usual:.3g}, the median before, or less")

    trial.before_update(clip)
    trial.at_end(check)
