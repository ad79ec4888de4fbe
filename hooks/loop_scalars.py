"""What the loop itself tells at each step: its loss, whole or by micro-batches, and numbers of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from stabilitylens.hooks.guard import Guard, guarded


class LoopScalars:
    """Takes in what the loop hands over; what is no number is said, and costs nothing else.

    Args:
        guard: says what is wrong.
        needs_loss: whether a step without a loss is worth a sentence.
    """

    def __init__(self, guard: Guard, *, needs_loss: bool) -> None:
        self.guard, self._needs_loss = guard, needs_loss
        self._losses: list[Tensor | float] = []

    def begin_step(self) -> None:
        """Forget the micro-batches of the step before."""
        self._losses = []

    @guarded("reading the loss")
    def note_loss(self, loss: Any) -> None:
        """Keep a loss, of a micro-batch or a step."""
        if loss is None:
            return
        value = loss.detach() if isinstance(loss, Tensor) else float(loss)
        if isinstance(value, Tensor) and value.numel() != 1:
            self.guard.say(f"the loss has shape {tuple(value.shape)}; its mean is recorded: pass a scalar")
            value = value.float().mean()
        self._losses.append(value)

    @guarded("reading the loss")
    def so_far(self) -> Tensor | float | None:
        """The mean of the micro-batches told until now; None where there is none."""
        return mean(self._losses) if self._losses else None

    def loss(self, loss: Tensor | float | None, step: int) -> Tensor | float | None:
        """The step's loss: the one that is given, else the mean of the micro-batches; None where there is none."""
        micro, self._losses = self._losses, []
        if loss is not None or not micro:
            self.note_loss(loss)
            micro = self._losses or micro
        if not micro:
            if self._needs_loss and loss is None:
                self.guard.say("lens.step() was given no loss, so loss is not observed: call lens.step(loss)")
            return None
        total = mean(micro)
        if isinstance(total, float) or total.device.type == "cpu":  # elsewhere looking would wait for the device
            self._say_if_bad(float(total), step)
        return total

    def _say_if_bad(self, total: float, step: int) -> None:
        if not math.isfinite(total):
            self.guard.say(
                f"the loss is {total} at step {step}; it is recorded, and training goes on: "
                "run `stabilitylens postmortem` on the log directory to see where it began",
                once="a loss that is not finite",
            )

    def numbers(self, given: Mapping[str, Any]) -> dict[str, Tensor | float]:
        """Scalars of the loop's own; what is no number is left out, and said."""
        numbers = {name: self._number(name, value) for name, value in given.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def _number(self, name: str, value: Any) -> Tensor | float | None:
        try:
            return value.detach().reshape(()) if isinstance(value, Tensor) else float(value)
        except (TypeError, ValueError, RuntimeError):
            self.guard.say(f"lens.step({name}=…) was given no single number, so it is left out", once=name)
            return None


def mean(losses: Sequence[Tensor | float]) -> Tensor | float:
    """The mean of micro-batch losses, in fp64 where there is more than one."""
    if len(losses) == 1:
        return losses[0]
    return sum(v.double() if isinstance(v, Tensor) else v for v in losses) / len(losses)
