"""The counterfactual z_loss."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.hooks.counterfactuals._member import NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial
from stabilitylens.hooks.head import find_head
from stabilitylens.hooks.subject import Subject

#: PaLM's (https://arxiv.org/abs/2204.02311)
COEFFICIENT = 1e-4
#: rows whose token is nearly certain tell no weight: their gradient is rounding
SURE = 0.999


@counterfactual()
def z_loss(trial: Trial) -> None:
    r"""Add the z-loss, $10^{-4} \ln^2 Z$ of the output logits, from the snapshot on, through their gradient.

    It keeps output logits from drifting: <https://arxiv.org/abs/2204.02311>. How much a row counts (mean, accumulation, loss
    scale) is read off the gradient that the cross-entropy gave it. The losses in the table do not contain it.
    """
    head = _head(trial.model)
    if head is None:
        raise NotApplicable("the module that makes the output logits can't be told")
    added: list[bool] = []

    def logits(_module: nn.Module, _args: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.requires_grad:
            kept = out.detach()
            out.register_hook(lambda gradient: gradient + _gradient(kept, gradient, added))

    def check() -> None:
        if not added:
            raise NotApplicable("no gradient of the output logits was seen; the loss may be computed without them")

    trial.stack.callback(head.register_forward_hook(logits).remove)
    trial.at_end(check)


def _head(model: nn.Module) -> nn.Module | None:
    subject = Subject(model)
    name = find_head(model, subject.names, set(subject.blocks))
    return next((module for module, known in subject.names.items() if known == name), None)


@torch.no_grad()
def _gradient(logits: Float[Tensor, "*row word"], gradient: Float[Tensor, "*row word"], added: list[bool]) -> Tensor:
    """The z-loss's gradient: 2·coefficient·ln Z·softmax for each row, times what the row counts."""
    z, g = logits.float(), gradient.float()
    log_z = z.logsumexp(-1, keepdim=True)
    p = (z - log_z).exp()
    lowest, token = g.min(-1, keepdim=True)
    certain = p.gather(-1, token)
    counts = (lowest < 0) & (certain < SURE)
    if not bool(counts.any()):
        return torch.zeros_like(gradient)
    added.append(True)
    weight = (-lowest / (1 - certain))[counts].median()  # of one row among others: all count alike but for those that count nothing
    return torch.where(lowest < 0, weight * 2 * COEFFICIENT * log_z * p, 0.0).to(gradient.dtype)
