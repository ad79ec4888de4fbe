"""Gradients of an optimizer, taken away for a while."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stabilitylens.hooks.optimizers import parameters_of
from stabilitylens.hooks.shares import local
from stabilitylens.kernels import sums_of_squares


class Hidden:
    """Takes every gradient away from an optimizer, until they are put back."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._held: list[tuple[nn.Parameter, Tensor | None]] = [(p, p.grad) for p in parameters_of(optimizer)]
        for parameter, _ in self._held:
            parameter.grad = None

    def put_back(self) -> None:
        """Give each parameter the gradient that it had."""
        for parameter, grad in self._held:
            parameter.grad = grad


@torch.no_grad()
def norm_of(optimizer: Optimizer) -> float:
    """L2 norm of all gradients that this process holds, accumulated in fp64."""
    grads = [local(p.grad) for p in parameters_of(optimizer) if p.grad is not None]
    return float(sums_of_squares(grads).sum().sqrt()) if grads else float("nan")
