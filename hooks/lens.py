"""The Lens: step boundary, cadence, one read of the slots a sampled step, hand over to the Run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from stabilitylens.anatomy import Anatomy
from stabilitylens.hooks.entry import Entry
from stabilitylens.hooks.guard import Guard, guarded
from stabilitylens.hooks.head import find_head
from stabilitylens.hooks.parameters import ParameterTaps
from stabilitylens.hooks.record import Recorder
from stabilitylens.hooks.sample import Layout, assemble
from stabilitylens.hooks.slots import Slots
from stabilitylens.hooks.subject import Subject
from stabilitylens.hooks.taps import ForwardTaps
from stabilitylens.metrics import compute
from stabilitylens.recipe import Recipe


class Lens:
    """Observes one model while it trains. Made by :func:`stabilitylens.attach`.

    Attributes:
        step_number: the optimizer step that is under way, from 1.
    """

    def __init__(
        self,
        subject: Subject,
        optimizers: Sequence[Optimizer],
        logdir: Path,
        *,
        every: int,
        scaler: Any,
        recipe: Recipe,
        anatomy: Anatomy | None,
        guard: Guard,
    ) -> None:
        self.guard = guard
        self._subject, self._optimizers, self._every, self._scaler = subject, list(optimizers), every, scaler
        self._slots = Slots(subject.device)
        head = find_head(subject.model, subject.names, set(subject.blocks))
        self._taps = ForwardTaps(subject.names, set(subject.blocks), head, self._slots, self.guard)
        self._parameters = ParameterTaps(subject.parameters, self._slots)
        self._recorder = Recorder(logdir, subject, recipe, every, anatomy, guard)
        self._entry = Entry(subject, self._taps, self._wants_forward, guard)
        self._handles = [
            handle
            for o in self._optimizers
            for handle in (o.register_step_pre_hook(self._before_update), o.register_step_post_hook(self._after_update))
        ]
        self.step_number = 1
        self._closed = False
        self._began = time.perf_counter()
        self._begin_step()
        subject.claim(self)

    # the loop's calls

    def micro_step(self, loss: Tensor | float) -> None:
        """Note the loss of a micro-batch; the step's loss is the mean of them. Call it after each backward."""
        self._note_loss(loss)

    @guarded("grads_ready()")
    def grads_ready(self) -> None:
        """Read the gradients before they are clipped. Call it between backward and clipping."""
        scale = self._pending_scale()
        if self._sampling:
            self._parameters.gradients("grad", scale)
        norm = self._parameters.gradient_norm(scale)
        if norm is not None:
            self._scalars["grad_norm"] = norm
        self._gradients_read = True

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
        self.step_number += 1
        self._begin_step()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a resumed run goes on counting."""
        return {"step_number": self.step_number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint: call it before the first step; what was recorded after it is superseded."""
        self.step_number = int(state["step_number"])
        self._recorder.resume(self.step_number)
        self._begin_step()

    @guarded("close()")
    def close(self) -> None:
        """Detach: every hook is removed, the record is complete. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self._entry.remove()
        for handle in self._handles:
            handle.remove()
        self._subject.release()
        self._recorder.close(self.step_number)

    def __enter__(self) -> Lens:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # cadence

    def _begin_step(self) -> None:
        self._sampling = self.step_number == 1 or self.step_number % self._every == 0
        self._scalars: dict[str, Tensor | float] = {}
        self._losses: list[Tensor | float] = []
        self._gradients_read = False
        self._updated = False

    def _wants_forward(self) -> bool:
        return self._sampling and not self._closed

    # the optimizer's step

    def _pending_scale(self, optimizer: Optimizer | None = None) -> float:
        """What still multiplies the gradients: the scaler's factor until it has unscaled them."""
        if optimizer is not None and getattr(optimizer, "grad_scale", None) is not None:
            return float(optimizer.grad_scale)  # type: ignore[attr-defined]
        if self._scaler is None or not self._scaler.is_enabled() or optimizer is not None:
            return 1.0
        stages = [self._scaler._per_optimizer_states[id(o)]["stage"].name for o in self._optimizers]
        return 1.0 if "UNSCALED" in stages else float(self._scaler.get_scale())

    @guarded("reading parameters before the update")
    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._updated = True
        scale = self._pending_scale(optimizer)
        mine = self._parameters.owned(optimizer)
        if self._sampling:
            self._parameters.gradients("grad_clipped", scale, mine)
            self._parameters.before_update(optimizer)
        if not self._gradients_read:
            norm = self._parameters.gradient_norm(scale, mine)
            if norm is not None:
                so_far = self._scalars.get("grad_norm_clipped", 0.0)
                self._scalars["grad_norm_clipped"] = (norm**2 + so_far**2) ** 0.5

    @guarded("reading parameters after the update")
    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        if self._sampling:
            self._parameters.after_update(optimizer, self._pending_scale(optimizer))

    # the end of a step

    @guarded("reading the loss")
    def _note_loss(self, loss: Any) -> None:
        if loss is None:
            return
        value = loss.detach() if isinstance(loss, Tensor) else float(loss)
        if isinstance(value, Tensor) and value.numel() != 1:
            self.guard.say(f"the loss has shape {tuple(value.shape)}; its mean is recorded: pass a scalar")
            value = value.float().mean()
        self._losses.append(value)

    def _loss(self, loss: Tensor | float | None) -> Tensor | float | None:
        micro, self._losses = self._losses, []
        if loss is not None or not micro:
            self._note_loss(loss)
            micro = self._losses or micro
        if not micro:
            self.guard.say("lens.step() was given no loss, so loss is not observed: call lens.step(loss)")
            return None
        total = sum(micro) / len(micro)
        if isinstance(total, float) or total.device.type == "cpu":
            if not math.isfinite(float(total)):
                self.guard.say(
                    f"the loss is {float(total)} at step {self.step_number}; it is recorded, and training goes on: "
                    "run `stabilitylens postmortem` on the log directory to see where it began",
                    once="a loss that is not finite",
                )
        return total

    @guarded("recording a step")
    def _finish_step(self, loss: Tensor | float | None, extra: dict[str, Tensor | float]) -> None:
        now = time.perf_counter()
        value = self._loss(loss)
        if value is not None:
            self._scalars["loss"] = value
        rates = [float(g["lr"]) for o in self._optimizers for g in o.param_groups]
        self._scalars["lr"] = max(rates, default=math.nan)
        self._scalars["step_time"] = now - self._began
        self._began = now
        scaled = self._scaler is not None and self._scaler.is_enabled()
        if scaled:
            self._scalars["loss_scale"] = float(self._scaler.get_scale())
        if self._optimizers and not self._updated:
            self._scalars["skipped"] = 1.0
            self._recorder.event(self.step_number, "step_skipped", "the optimizer took no step")
        self._recorder.step(self.step_number, self._scalars | extra, flush=self._sampling)
        if self._sampling:
            self._sample(float(self._scalars.get("loss_scale", 1.0)))

    @guarded("computing the metrics of a sampled step")
    def _sample(self, loss_scale: float) -> None:
        rows = self._slots.read()
        self._slots.clear()
        layout = self._layout()
        rates = self._parameters.learning_rates(self._optimizers)
        arrays = compute(assemble(rows, layout, rates, loss_scale))
        self._recorder.sample(self.step_number, arrays, layout, self._taps, self._parameters)

    def _layout(self) -> Layout:
        declared = [(name, 0) for name in self._subject.blocks]
        layers = list(dict.fromkeys([*declared, *self._taps.layers]))
        return Layout.of(self._parameters.names, layers, list(self._taps.attention), len(self._taps.branch_kinds))
