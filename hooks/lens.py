"""The Lens: step boundary, cadence, one read of the slots a sampled step, hand over to the Run."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch._compile import _disable_dynamo as uncompiled  # torch.compiler.disable would import all of it at once
from torch.optim import Optimizer

from stabilitylens.anatomy import Anatomy
from stabilitylens.hooks.blackbox.calls import BlackBoxCalls
from stabilitylens.hooks.cadence import Every, cadence
from stabilitylens.hooks.changes import note_changes
from stabilitylens.hooks.compiled import CompiledTaps
from stabilitylens.hooks.entry import Entry
from stabilitylens.hooks.guard import Guard, guarded
from stabilitylens.hooks.guards import Act, Guards
from stabilitylens.hooks.head import find_head
from stabilitylens.hooks.layers import parts_of
from stabilitylens.hooks.loop_scalars import LoopScalars
from stabilitylens.hooks.optimizers import highest_rate
from stabilitylens.hooks.parameters import ParameterTaps
from stabilitylens.hooks.record import Recorder
from stabilitylens.hooks.sample import Layout, assemble
from stabilitylens.hooks.scaling import Scaling
from stabilitylens.hooks.selection import rows_for, taps_of
from stabilitylens.hooks.slots import Slots
from stabilitylens.hooks.subject import Subject
from stabilitylens.hooks.taps import FORWARD, ForwardTaps
from stabilitylens.hooks.together import ranks_of, together
from stabilitylens.hooks.updates import Updates
from stabilitylens.metrics import Metric, compute
from stabilitylens.recipe import Recipe

#: the taps of which one at least reads every gradient
GRADIENTS = frozenset({"grad", "grad_clipped"})


class Lens(BlackBoxCalls):
    """Observes one model while it trains. Made by :func:`stabilitylens.attach`.

    Attributes:
        step_number: the optimizer step that is under way, from 1.
        logdir: the run's folder.
        subject: what is observed.
        optimizers: those that step it.
        guards: what :meth:`on` has set.
    """

    def __init__(
        self,
        subject: Subject,
        optimizers: Sequence[Optimizer],
        logdir: Path,
        *,
        every: Every,
        metrics: Sequence[Metric],
        scaler: Any,
        recipe: Recipe,
        anatomy: Anatomy | None,
        guard: Guard,
    ) -> None:
        self.guard, self.logdir = guard, logdir
        self.subject, self.optimizers = subject, list(optimizers)
        ranks = ranks_of(every, guard)
        self._cadence = cadence(every, guard, ranks.agree) if ranks is not None else cadence(every, guard)
        self.guards = Guards(self, ranks.decide if ranks is not None else lambda flag: flag)
        self._metrics, self._wanted, rows = metrics, taps_of(metrics), rows_for(metrics)
        self._forward = bool(self._wanted & FORWARD)
        self._slots = Slots(subject.device)
        head = find_head(subject.model, subject.names, {part for layer in subject.blocks for part in parts_of(layer)})
        self._taps = ForwardTaps(subject.names, set(subject.blocks), head, self._slots, self.guard, self._wanted, rows)
        self._parameters = ParameterTaps(subject.parameters, self._slots, self._wanted, rows)
        self._recorder = Recorder(logdir, subject, recipe, every, metrics, anatomy, guard, ranks)
        self._together = together(subject, self._taps, self._parameters, self._recorder, metrics, ranks, guard)
        self._loop = LoopScalars(guard, needs_loss=self._together is None)  # of pipeline stages only the last has a loss
        self._entry = Entry(subject, self._taps, self._wants_forward, guard)
        self._compiled = CompiledTaps(
            subject.model, {} if subject.compiled else subject.callable_blocks, self._taps, self._wants_forward, anatomy
        )
        self._updates = Updates(
            subject, self.optimizers, Scaling(scaler), self._parameters, self._taps.routers, self._slots, self._wanted, self.guards,
            self._loop.so_far, self._recorder.event, guard,
        )  # fmt: skip
        self.step_number = self._first_step = 1
        self._closing: list[Callable[[], object]] = []
        self._closed = self._closing_soon = False
        self._began = time.perf_counter()
        self._begin_step()
        subject.claim(self)

    # the loop's calls

    @uncompiled
    def micro_step(self, loss: Tensor | float) -> None:
        """Note the loss of a micro-batch; the step's loss is the mean of them. Call it after each backward."""
        self._loop.note_loss(loss)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """What runs inside is one forward: for a loop that calls blocks one by one, where no module's own forward does."""
        self._entry.open()
        try:
            yield
        finally:
            self._entry.close()

    @uncompiled
    @guarded("grads_ready()")
    def grads_ready(self, optimizer: Optimizer | None = None) -> None:
        """Read the gradients before they are clipped. Call it between backward and clipping.

        Args:
            optimizer: the one whose gradients are ready, where several take turns within a step.
        """
        self._updates.ready(optimizer)

    @uncompiled
    def step(self, loss: Tensor | float | None = None, **scalars: Tensor | float) -> None:
        """End an optimizer step. Call it once after ``optimizer.step()``.

        Args:
            loss: the step's mean loss; may be left out where ``micro_step`` was called.
            scalars: anything else to keep at every step, e.g. ``tokens=…``.
        """
        if self._closed:
            self.guard.say("lens.step() was called after lens.close() and records nothing; attach again to go on")
            return
        self._finish_step(loss, scalars)
        if self._sampling:
            self._sample()
        elif self._together is not None:
            self._together.between(self.step_number)
        try:
            self.guards.after_step(self._updates.scalars)
        finally:
            self.step_number += 1
            self._begin_step()
            if self._closing_soon:
                self.close()

    def on(self, kind: str, action: str | Act, *, at_most: int = 10, **options: Any) -> None:
        """Set a guard: what to do when a step goes wrong; without one nothing is ever done.

        It judges the gradient norm, and the loss where ``micro_step`` has told it, before the optimizer steps, and what
        is known only later after it; on a GPU that waits for the device once a step. Several processes decide together.

        Args:
            kind: ``nonfinite``, ``spike`` (of the loss), ``grad_spike`` or ``any``.
            action: the name of one (``stabilitylens.hooks.guards.ACTIONS``), or a function of an ``Alarm``; what it
                raises ends the training.
            at_most: how often it is done, so that a guard can't carry a run that is dead.
            options: of the action.

        Raises:
            BadInput: there is no such kind, action or option.
        """
        if self._closed:
            self.guard.say("lens.on() was called after lens.close() and sets no guard; attach again to go on")
            return
        self.guards.add(kind, action, at_most, options)

    def note_event(self, kind: str, text: str) -> None:
        """Record that something happened at the step that is under way."""
        self._recorder.event(self.step_number, kind, text)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a resumed run goes on counting."""
        return {"step_number": self.step_number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint: call it before the first step; what was recorded after it is superseded."""
        if not isinstance(state.get("step_number"), int):
            self.guard.say("load_state_dict() was given no state of a lens, so steps are counted from where they are")
            return
        self.step_number = self._first_step = int(state["step_number"])
        self._recorder.resume()
        self._begin_step()

    @guarded("close()")
    def close(self) -> None:
        """Detach: every hook is removed, the record is complete; from a guard, when the step ends. Closing twice does nothing."""
        if self._closed:
            return
        if self.guards.updating:
            self._closing_soon = True
            return
        self._closed = True
        for call in (*self._closing, self._entry.remove, self._compiled.remove, self._updates.remove):
            call()
        self.subject.release()
        if self.step_number == self._first_step and (self._taps.ran or self._updates.updated):
            self.guard.say("lens.step() was never called, so nothing is recorded: call lens.step(loss) after optimizer.step()")
        if self._together is not None:
            self._together.close(self.step_number)
        self._recorder.close(self.step_number)

    def on_close(self, call: Callable[[], object]) -> None:
        """Have something called when the lens is closed, e.g. to put back what an adapter replaced."""
        self._closing.append(call)

    def __enter__(self) -> Lens:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # cadence

    def _begin_step(self) -> None:
        due = self._cadence.due(self.step_number) or self.step_number == self._first_step
        self._sampling = (due or self.step_number <= self.guards.dense_until) and (self._together is None or self._together.samples)
        self._loop.begin_step()
        self._updates.begin_step(self.step_number, self._sampling)

    def _wants_forward(self) -> bool:
        return self._sampling and self._forward and not self._closed and not self.guards.quiet

    # the end of a step

    @guarded("recording a step")
    def _finish_step(self, loss: Tensor | float | None, extra: dict[str, Any]) -> None:
        now = time.perf_counter()
        value = self._loop.loss(loss, self.step_number)
        if value is not None:
            self._updates.scalars["loss"] = value
        if "lr" not in self._updates.scalars:
            self._updates.scalars["lr"] = highest_rate(self.optimizers)
        self._updates.scalars["step_time"] = now - self._began
        self._began = now
        if self._parameters.fresh:
            note_changes(self.subject, self._taps, self._parameters, self.note_event, self.guard)
        moved = self._parameters.moved()
        if self.optimizers and not self._updates.updated:
            self._note_no_step(moved)
        if self._updates.updated and self._sampling and self._wanted & GRADIENTS and self._together is None and self._parameters.idle:
            self.guard.say(
                "no trainable parameter had a gradient when the optimizer stepped, so nothing is learned: "
                "gradients are cleared before the step, or none reaches the parameters"
            )
        self._updates.scalars |= self._loop.numbers(extra)
        self._recorder.step(self.step_number, self._updates.scalars)
        self._cadence.note(self._updates.scalars)
        self._keep_step(self.step_number, self._updates.scalars)

    def _note_no_step(self, moved: bool) -> None:
        """No optimizer that is known has stepped: the step was skipped, or something else has taken it."""
        if not moved or "loss_scale" in self._updates.scalars:
            self._updates.scalars["skipped"] = 1.0
            return
        self.guard.say(
            "the model's parameters change although no optimizer steps that can be listened to, so updates are not observed: "
            "pass the torch.optim.Optimizer that steps them to attach()"
        )

    @guarded("computing the metrics of a sampled step")
    def _sample(self) -> None:
        rows = self._rows()
        loss_scale = float(self._updates.scalars.get("loss_scale", 1.0))
        if self._together is not None:
            self._note_sample(self.step_number, self._together.sample(self.step_number, rows, self._updates.rates, loss_scale))
            return
        self._recorder.flush()
        if rows is not None:
            layout = self._layout()
            arrays = compute(assemble(rows, layout, self._updates.rates, loss_scale), self._metrics)
            self._recorder.sample(self.step_number, arrays, layout, self._taps, self._parameters)
            self._note_sample(self.step_number, arrays)

    @guarded("reading what the taps left")
    def _rows(self) -> dict[str, dict[Hashable, np.ndarray]]:
        try:
            rows, numbers = self._slots.read(self._recorder.on_device())
        finally:
            self._slots.clear()
        self._recorder.arrived(numbers)
        if float(self._updates.scalars.get("skipped", 0.0)) > 0:  # what a fused optimizer left undone is no update
            rows = {tap: row for tap, row in rows.items() if tap not in ("grad_clipped", "update", "adam")}
        if self._updates.unlike_rows:
            rows.pop("grad", None)
        return rows

    def _layout(self) -> Layout:
        declared = [(name, 0) for name in self.subject.blocks]
        layers = list(dict.fromkeys([*declared, *self._taps.layers]))
        return Layout.of(self._parameters.names, layers, list(self._taps.attention), len(self._taps.branch_kinds), list(self._taps.norms))
