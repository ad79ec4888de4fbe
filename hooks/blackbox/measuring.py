"""Loss and gradient norm of any micro-batches at any state of a replay, which stays as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stabilitylens.hooks.blackbox.everybody import gathered
from stabilitylens.hooks.blackbox.rerun import Rerun, skipped
from stabilitylens.hooks.blackbox.snapshot import Snapshot
from stabilitylens.hooks.optimizers import parameters_of
from stabilitylens.hooks.shares import local
from stabilitylens.kernels import sums_of_squares


@dataclass(frozen=True)
class Measured:
    """What a step would have been: its loss, and its gradient norm before clipping, None where it was not observed."""

    loss: float
    grad_norm: float | None

    @property
    def finite(self) -> bool:
        """Whether what was observed is."""
        return math.isfinite(self.loss) and (self.grad_norm is None or math.isfinite(self.grad_norm))

    @property
    def words(self) -> str:
        """For a person."""
        return f"loss {self.loss:.4g}" + ("" if self.grad_norm is None else f", gradient norm {self.grad_norm:.4g}")


class Measuring:
    """Measures at one state, which is put back where a measurement has moved it.

    Args:
        rerun: the replay, in that state.
        state: a copy of it.
    """

    def __init__(self, rerun: Rerun, state: Snapshot) -> None:
        self._rerun, self._state = rerun, state

    def of(self, step: int, batches: Sequence[Any] | None = None) -> Measured:
        """Do a step without its update, all processes together: the mean of their losses, and the norm of what they reduce.

        Where each process adds up whole gradients before they are reduced, it is the root mean square of their norms.

        Args:
            step: whose random states and, where none are given, micro-batches are taken.
            batches: the micro-batches.
        """
        everybody = gathered(self._done(step, batches, None))
        loss = sum(found.loss for found in everybody) / len(everybody)
        if any(found.grad_norm is None for found in everybody):
            return Measured(loss, None)
        square = sum((found.grad_norm or 0.0) ** 2 for found in everybody)
        return Measured(loss, math.sqrt(square if self._sharded else square / len(everybody)))

    def of_row(self, step: int, batch: Any, micro: int) -> Measured:
        """Do a step without its update on one row of this process, while the others do the same with theirs.

        Its gradient is not observed where the processes keep parts of one sum of all their gradients.

        Args:
            step: whose random states are taken.
            batch: a micro-batch of one row.
            micro: the place, among the step's, of the micro-batch that the row is of.
        """
        with getattr(self._rerun.model, "no_sync", nullcontext)():
            found = self._done(step, [batch], micro)
        return Measured(found.loss, None) if self._sharded else found

    @property
    def _sharded(self) -> bool:
        return any(local(p) is not p for p in self._parameters)

    @property
    def _parameters(self) -> list[Tensor]:
        return [p for o in self._rerun.optimizers for p in parameters_of(o)]

    def _done(self, step: int, batches: Sequence[Any] | None, micro: int | None) -> Measured:
        """What this process sees of a step."""
        parameters = self._parameters
        self._rerun.model.zero_grad(set_to_none=True)
        versions = [p._version for p in parameters]
        with accumulated(parameters) as squares, skipped(self._rerun.optimizers):
            scale = self._rerun.scale()
            loss = self._rerun.run(step, batches, micro=micro)
        norm = math.sqrt(sum(squares.values())) / scale if squares else None
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
