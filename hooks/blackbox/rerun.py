"""Runs kept steps again, from a snapshot, with the random states and learning rates that they had."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox import restoring, snapshot
from stabilitylens.hooks.blackbox.evidence import Evidence
from stabilitylens.hooks.blackbox.forwards import Forwards
from stabilitylens.hooks.blackbox.randoms import RandomState, put_back
from stabilitylens.hooks.blackbox.splitting import whole
from stabilitylens.hooks.cadence import BY_GUARD
from stabilitylens.hooks.guards._gradients import Hidden
from stabilitylens.hooks.loop_scalars import mean
from stabilitylens.hooks.optimizers import unwrapped
from stabilitylens.hooks.subject import Subject, observer_of

#: ``step_fn(model, optimizer, batches)``: one whole optimizer step on a list of micro-batches; returns the loss that the
#: loop gave to ``lens.step()``, or the list of those that it gave to ``lens.micro_step()``
StepFunction = Callable[[Any, Any, Any], Any]


class MicroBatches(list[Any]):
    """The micro-batches of a step; the random states are put back before each, as it is come to."""

    def __init__(self, batches: Sequence[Any], randoms: Sequence[RandomState], device: torch.device) -> None:
        super().__init__(batches)
        self._randoms, self._device = randoms, device

    def __iter__(self) -> Iterator[Any]:
        for i, batch in enumerate(super().__iter__()):
            if i < len(self._randoms):
                put_back(self._randoms[i], self._device)
            yield batch


class Rerun:
    """A training that is taken back to a snapshot and run again, step by step.

    Args:
        evidence: the dumped incident.
        model, optimizer: built as they were; their state does not matter. The optimizer may be a list of several.
        step_fn: one whole optimizer step, see :data:`StepFunction`.
        scheduler, scaler: those that ``step_fn`` uses, so that their state is put back too.

    Attributes:
        snapshot: the state that :meth:`restore` puts back.

    Raises:
        BadInput: something is missing or of the wrong kind, or no snapshot was kept.
    """

    def __init__(
        self, evidence: Evidence, model: nn.Module, optimizer: Any, step_fn: StepFunction, scheduler: Any = None, scaler: Any = None
    ) -> None:
        check(model, optimizer, step_fn)
        self.evidence, self.model, self._given, self._step_fn = evidence, model, optimizer, step_fn
        self.optimizers = [unwrapped(o) for o in (optimizer if isinstance(optimizer, (list, tuple)) else [optimizer])]
        several = scheduler if isinstance(scheduler, (list, tuple)) else [scheduler]
        self._schedulers, self._scaler = [s for s in several if s is not None], scaler
        first = next(model.parameters(), None)
        self._device = torch.device("cpu") if first is None else first.device
        self._holders = Subject(model).holders
        self.snapshot = whole(evidence.snapshot(), evidence.folder, model, self.optimizers)
        standing = evidence.standing(self.snapshot.step)
        if standing is not None:  # the others were cleared before the backward, and a step_fn may clear them at its end
            self.snapshot.gradients = {n: g for n, g in self.snapshot.gradients.items() if n in standing}

    def restore(self, state: snapshot.Snapshot | None = None, *, weights: bool = True) -> int:
        """Put a state back, that of the snapshot where none is given; the step that starts from it.

        Args:
            state: the one to put back.
            weights: also the parameters and the optimizers' state; what is left are buffers, scaler and schedulers.
        """
        state = state or self.snapshot
        restoring.put_back(state, self.model, self.optimizers, self._schedulers, self._scaler, weights=weights)
        return state.step

    def scale(self) -> float:
        """What the loss is multiplied by; 1 without a scaler."""
        return 1.0 if self._scaler is None or not self._scaler.is_enabled() else float(self._scaler.get_scale())

    def state(self, step: int) -> snapshot.Snapshot:
        """A copy of the present state, as the one before a step, for :meth:`restore`."""
        return snapshot.take(step, self.model, self.optimizers, self._schedulers, self._scaler)

    def run(
        self, step: int, batches: Sequence[Any] | None = None, *, micro: int | None = None,
        change: Callable[[dict[str, Any]], None] | None = None,
    ) -> float:  # fmt: skip
        """Run one step from the present state.

        Args:
            step: its number: random states, learning rates and, where none are given, micro-batches are its own.
            batches: other micro-batches.
            micro: the place, among the step's, of the one whose random states they begin with.
            change: called with each parameter group once it is what it was, to change it, e.g. to halve its ``lr``.

        Returns:
            Its loss; NaN where ``step_fn`` returned none.
        """
        for i, groups in self.evidence.groups(step).items():
            for group, values in zip(self.optimizers[i].param_groups, groups, strict=True):
                restoring.set_group(group, values)
        for group in (g for o in self.optimizers if change is not None for g in o.param_groups):
            change(group)  # type: ignore[misc]
        randoms, forwards = self.evidence.randoms(step)
        if micro is not None:
            each = len(forwards) // max(1, len(randoms))
            randoms, forwards = randoms[micro:], forwards[each * micro :]
        given = MicroBatches(self.evidence.batches(step) if batches is None else batches, randoms, self._device)
        for state in randoms[:1]:
            put_back(state, self._device)
        waiting = iter(forwards)
        hook = Forwards(self._holders, lambda *_: self._before_forward(waiting))
        skipping = self.evidence.scalar(step, "skipped") == BY_GUARD
        try:
            with skipped(self.optimizers) if skipping else contextlib.nullcontext():
                return number(self._step_fn(self.model, self._given, given))
        finally:
            hook.remove()

    def until(self, step: int) -> dict[int, float]:
        """Put the snapshot back and run every step before a step; their losses."""
        return {i: self.run(i) for i in range(self.restore(), step)}

    def _before_forward(self, waiting: Iterator[RandomState]) -> None:
        state = next(waiting, None)
        if state is not None:
            put_back(state, self._device)


@contextlib.contextmanager
def skipped(optimizers: Sequence[Any]) -> Iterator[None]:
    """Optimizers step without gradients, as a guard that skips a step has it."""
    hidden: dict[int, Hidden] = {}
    handles = []

    def hide(optimizer: Any, *_: Any) -> None:
        hidden[id(optimizer)] = Hidden(optimizer)

    for o in optimizers:
        handles.append(o.register_step_pre_hook(hide))
        handles.append(o.register_step_post_hook(lambda o, *_: hidden.pop(id(o)).put_back()))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def number(loss: Any) -> float:
    """The loss that a step returned, as the lens records it."""
    if loss is None:
        return float("nan")
    several = loss if isinstance(loss, (list, tuple)) else [loss]
    values = [v.detach() if isinstance(v, Tensor) else v for v in several]
    if not values or any(isinstance(v, Tensor) and v.numel() != 1 or not isinstance(v, (Tensor, int, float)) for v in values):
        raise BadInput("step_fn returned no loss: it returns one number, or a list of one for each micro-batch")
    return float(mean(values))


def check(model: Any, optimizer: Any, step_fn: Any) -> None:
    """Say what is missing for a replay.

    Raises:
        BadInput: something is.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"replay() needs a torch.nn.Module as its second argument, not {type(model).__name__}")
    several = [unwrapped(o) for o in (optimizer if isinstance(optimizer, (list, tuple)) else [optimizer])]
    if not several or any(not hasattr(o, "param_groups") for o in several):
        raise BadInput(f"replay() needs a torch.optim.Optimizer or a list of them as its third argument, not {type(optimizer).__name__}")
    if not callable(step_fn):
        raise BadInput(
            "replay() needs step_fn(model, optimizer, batches) as its fourth argument: one whole optimizer step on a list of "
            "micro-batches, that returns the loss"
        )
    if observer_of(model) is not None:
        raise BadInput("the model is observed by a lens, which would record the replay as training; close() the lens first")
