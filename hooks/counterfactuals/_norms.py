"""The norm of all gradients at each step, before the loop clips them and as the optimizers see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stabilitylens.hooks.guards._gradients import norm_of
from stabilitylens.hooks.optimizers import parameters_of
from stabilitylens.hooks.shares import local


class GradientNorms:
    """Listens to gradients as they are accumulated, and to optimizers as they step.

    Args:
        scale: tells what the loss is multiplied by.
        stack: takes the hooks off.

    Attributes:
        sharded: this process holds parts of the parameters, and the norms are of its parts.
    """

    def __init__(self, optimizers: Sequence[Optimizer], scale: Callable[[], float], stack: ExitStack) -> None:
        self._squares: dict[int, Tensor] = {}
        self._seen: list[float] = []
        self._scale, self._scaled_by = scale, 1.0
        self.sharded = any(local(p) is not p for o in optimizers for p in parameters_of(o))
        for optimizer in optimizers:
            stack.callback(optimizer.register_step_pre_hook(self._stepping).remove)
            for parameter in parameters_of(optimizer):
                if parameter.requires_grad:
                    stack.callback(parameter.register_post_accumulate_grad_hook(self._accumulated).remove)

    def begin_step(self) -> None:
        """Forget the step before."""
        self._squares.clear()
        self._seen.clear()
        self._scaled_by = self._scale()

    def of_step(self) -> tuple[float, float]:
        """L2 norms before the loop clipped, unscaled, and as the optimizers saw it; NaN where there was no gradient."""
        before = math.sqrt(sum(float(s) for s in self._squares.values())) / self._scaled_by if self._squares else math.nan
        return before, math.hypot(*self._seen) if self._seen else math.nan

    @torch.no_grad()
    def _accumulated(self, parameter: nn.Parameter | Tensor) -> None:
        assert parameter.grad is not None
        norm = torch.linalg.vector_norm(local(parameter.grad), dtype=torch.promote_types(parameter.grad.dtype, torch.float32))
        self._squares[id(parameter)] = norm.double().square()

    def _stepping(self, optimizer: Optimizer, *_: object) -> None:
        self._seen.append(norm_of(optimizer))
