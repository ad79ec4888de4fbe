"""Loss and gradient norm of any micro-batches at any state of a replay, which stays as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stabilitylens.hooks.blackbox.rerun import Rerun, skipped
from stabilitylens.hooks.blackbox.snapshot import Snapshot
from stabilitylens.hooks.optimizers import parameters_of
from stabilitylens.hooks.shares import local
from stabilitylens.kernels import sums_of_squares


@dataclass(frozen=True)
class Measured:
    """What a step would have been: its loss, and its gradient norm before clipping."""

    loss: float
    grad_norm: float

    @property
    def finite(self) -> bool:
        """Whether both are."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Measuring:
    """Measures at one state, which is put back where a measurement has moved it.

    Args:
        rerun: the replay, in that state.
        state: a copy of it.
    """

    def __init__(self, rerun: Rerun, state: Snapshot) -> None:
        self._rerun, self._state = rerun, state

    def of(self, step: int, batches: Sequence[Any] | None = None, micro: int | None = None) -> Measured:
        """Do a step without its update.

        Args:
            step: whose random states and, where none are given, micro-batches are taken.
            batches: the micro-batches.
            micro: the place, among the step's, of the one whose random states are taken for them.
        """
        parameters = [p for o in self._rerun.optimizers for p in parameters_of(o)]
        self._rerun.model.zero_grad(set_to_none=True)
        versions = [p._version for p in parameters]
        with accumulated(parameters) as squares, skipped(self._rerun.optimizers):
            scale = self._rerun.scale()
            loss = self._rerun.run(step, batches, micro=micro)
        norm = math.sqrt(sum(squares.values())) / scale if squares else math.nan
        moved = versions != [p._version for p in parameters]
        self._rerun.restore(self._state, weights=moved)
        return Measured(loss, norm)


@contextmanager
def accumulated(parameters: Sequence[Tensor]) -> Iterator[dict[int, float]]:
    """The sum of squares of each parameter's gradient once the last micro-batch has been added to it."""
    squares: dict[int, float] = {}

    @torch.no_grad()
    def note(parameter: Tensor) -> None:
        if parameter.grad is not None:
            squares[id(parameter)] = float(sums_of_squares([local(parameter.grad)]).sum())

    handles = [p.register_post_accumulate_grad_hook(note) for p in parameters if p.requires_grad and p.is_leaf]
    try:
        yield squares
    finally:
        for handle in handles:
            handle.remove()
