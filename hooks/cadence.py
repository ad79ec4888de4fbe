"""Which steps are sampled: every n-th, those that a function names, or more when something smells of trouble."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from stabilitylens.errors import BadInput
from stabilitylens.hooks.guard import Guard

#: what ``every=`` takes
Every = int | Callable[[int], bool] | Literal["auto"]

#: what ``skipped`` holds where a guard skipped the step, and not a gradient scaler or the loop
BY_GUARD = 2.0
#: ``every="auto"``: one step in so many, as long as nothing smells
SPARSE = 50
#: so many steps in a row after something has smelt, and then at least so many in which it may not happen again
DENSE, REST = 20, 100


class Cadence(ABC):
    """Decides whether a step is sampled, before it begins."""

    @abstractmethod
    def due(self, step: int) -> bool:
        """Whether the step that is about to begin is to be sampled. Asked once a step, in order."""

    def note(self, scalars: Mapping[str, Any]) -> None:  # noqa: B027
        """Look at what the step that has just ended left, by name."""


class EveryNth(Cadence):
    """Every multiple of ``n``."""

    def __init__(self, n: int) -> None:
        self.n = n

    def due(self, step: int) -> bool:
        """Whether the step is a multiple."""
        return step % self.n == 0


class Chosen(Cadence):
    """The steps for which the user's function is true; one that raises is our problem and samples nothing.

    Of several processes that of any one decides for all.
    """

    def __init__(self, choose: Callable[[int], bool], guard: Guard, agree: Callable[[bool], bool]) -> None:
        self._choose, self.guard, self._agree = choose, guard, agree

    def due(self, step: int) -> bool:
        """What the function says."""
        return self._agree(self._ask(step))

    def _ask(self, step: int) -> bool:
        try:
            return bool(self._choose(step))
        except Exception as error:
            self.guard.failed("the function given as every=", error)
            return False


class Auto(Cadence):
    """One step in ``SPARSE``, and ``DENSE`` in a row once the loss or the gradient norm smells of trouble.

    On a device that runs ahead of the host a step's scalars are looked at when they have arrived, which may be a
    step or two later, so that nothing ever waits for them.

    Args:
        agree: whether any process wants something, the same answer in all of them; every process asks every step.
    """

    def __init__(self, agree: Callable[[bool], bool] = lambda flag: flag) -> None:
        from stabilitylens.incidents._online import OnlineDetector

        self._detector = OnlineDetector()
        self._agree = agree
        self._arriving: list[tuple[dict[str, Any], Any]] = []
        self._smelt = False
        self._dense = self._resting = 0

    def due(self, step: int) -> bool:
        """Whether it is the turn of the step, or a dense stretch is on."""
        smells = self._agree(self._smelt)
        self._smelt = False
        if self._dense == 0 and self._resting == 0 and smells:
            self._dense = DENSE
        if self._dense:
            self._dense -= 1
            self._resting = REST if self._dense == 0 else 0
            return True
        self._resting = max(0, self._resting - 1)
        return step % SPARSE == 0

    def note(self, scalars: Mapping[str, Any]) -> None:
        """Judge every step whose scalars are on the host by now."""
        self._arriving.append(_on_its_way({k: scalars[k] for k in ("loss", "grad_norm", "skipped") if k in scalars}))
        while self._arriving and (self._arriving[0][1] is None or self._arriving[0][1].query()):
            known = {name: float(value) for name, value in self._arriving.pop(0)[0].items()}
            found = self._detector.update(known.get("loss"), known.get("grad_norm"), is_skipped_by_scaler(known))
            self._smelt = self._smelt or bool(found)


def is_skipped_by_scaler(known: Mapping[str, float]) -> bool:
    """Whether a step was skipped as a matter of course, and not by a guard for what its gradients were."""
    return 0 < known.get("skipped", 0.0) < BY_GUARD


def _on_its_way(scalars: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Copies on the host, and the event that says when they are there; None where they are already."""
    event = None
    for name, value in scalars.items():
        if isinstance(value, Tensor) and value.device.type == "cuda":
            host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            scalars[name] = host.copy_(value, non_blocking=True)
            event = event or torch.cuda.Event()
    if event is not None:
        event.record()
    return scalars, event


def cadence(every: Every, guard: Guard, agree: Callable[[bool], bool] = lambda flag: flag) -> Cadence:
    """From what the user gave.

    Raises:
        BadInput: it is no whole number above zero, no function and not ``"auto"``.
    """
    if every == "auto":
        return Auto(agree)
    if callable(every):
        return Chosen(every, guard, agree)
    if type(every) is not int or every < 1:
        raise BadInput(
            f"every={every!r} is no sampling interval; pass a whole number of steps, 1 or more, a function of the step, or 'auto'"
        )
    return EveryNth(every)


def describe(every: Every) -> int | str:
    """What a header says of it."""
    return every if isinstance(every, int) else every if isinstance(every, str) else getattr(every, "__name__", "function")
