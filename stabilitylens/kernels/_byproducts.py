"""Who is told of the statistics that the norm kernels find on their way, and how they become rows of Moments.

A layer that may be watched has a number. The operators carry it, look it up when they run, and compute
statistics only where somebody listens at that moment: a compiled graph is the same whether they do or not.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

Tap = Literal["norm_input", "norm_output", "norm_input_grad", "norm_output_grad"]
#: number of a layer that nobody listens to
NOBODY = -1


@runtime_checkable
class Listener(Protocol):
    """Takes rows of ``stabilitylens.moments.Moments``."""

    def wanted(self) -> bool:
        """Whether rows are wanted at this moment."""

    def add(self, tap: Tap, row: Float[Tensor, " field"]) -> None:
        """Take a row, fp64."""


_LISTENERS: weakref.WeakValueDictionary[int, Listener] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def listen(listener: Listener) -> int:
    """A new number under which a listener is told for as long as it lives."""
    number = next(_NUMBERS)
    _LISTENERS[number] = listener
    return number


def listening(number: int) -> Listener | None:
    """Who wants rows of this layer now; nobody while a checkpointed forward is computed again."""
    listener = _LISTENERS.get(number)
    return listener if listener is not None and listener.wanted() else None


def in_backward() -> bool:
    """Whether autograd runs a backward in this thread."""
    return torch._C._current_graph_task_id() != -1


def _row(count: int, total: Tensor, sum_sq: Tensor, largest: Tensor, bad: Tensor) -> Float[Tensor, " field"]:
    unseen = torch.full_like(sum_sq, torch.nan)
    return torch.stack((torch.full_like(sum_sq, count), total, unseen, sum_sq, largest, bad))


def _largest(x: Tensor) -> Tensor:
    return x.amax() if len(x) else x.new_full((), -torch.inf)


def forward_rows(found: Float[Tensor, "program 10"], count: int) -> tuple[Float[Tensor, " field"], Float[Tensor, " field"]]:
    """Rows of input and output from what the forward kernel wrote; Σ|x| is not observed."""
    f = found.double()
    sums = f.sum(0)
    return tuple(_row(count, sums[i], sums[i + 1] + sums[i + 2] * 2.0**160, _largest(f[:, i + 3]), sums[i + 4]) for i in (0, 5))  # type: ignore[return-value]


def backward_rows(found: Float[Tensor, "program 6"], count: int) -> tuple[Float[Tensor, " field"], Float[Tensor, " field"]]:
    """Rows of the gradients of output and input from what the backward kernel wrote; Σ and Σ|x| are not observed."""
    f = found.double()
    sums, unseen = f.sum(0), torch.full_like(f.sum(), torch.nan)
    return (
        _row(count, unseen, sums[0], _largest(f[:, 1]), sums[2]),
        _row(count, unseen, sums[3], _largest(f[:, 4]), sums[5]),
    )
