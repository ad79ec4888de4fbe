"""What the optimizers' own hooks tell of a step: gradients, learning rates, updates, and whether one was taken at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from stabilitylens.hooks.cadence import BY_GUARD
from stabilitylens.hooks.guard import Guard, guarded
from stabilitylens.hooks.guards import Guards
from stabilitylens.hooks.optimizers import after_closure, highest_rate, unwrapped
from stabilitylens.hooks.parameters import ParameterTaps
from stabilitylens.hooks.routing import RouterWatch
from stabilitylens.hooks.scaling import Scaling
from stabilitylens.hooks.slots import Slots
from stabilitylens.hooks.steppers import Calls, Steppers, adopted
from stabilitylens.hooks.subject import Subject


class Updates:
    """Reads gradients and parameters around every optimizer's step.

    Args:
        subject: what is observed.
        optimizers: those that are known; one that comes later is added.
        scaling: the gradient scaler.
        parameters: reads them.
        routers: read the gradients of experts.
        slots: where rows go.
        wanted: the taps that are read.
        guards: act between the gradients and the update.
        loss_so_far: of the step, where the loop has told it.
        event: records something that happened at a step.

    Attributes:
        scalars: of the step that is under way, by name.
        rates: learning rates by index of the parameter, at a sampled step.
        updated: whether an optimizer has stepped.
        unlike_rows: whether the rows of ``grad`` are of gradients that were read wrongly.
    """

    def __init__(
        self, subject: Subject, optimizers: list[Optimizer], scaling: Scaling, parameters: ParameterTaps, routers: RouterWatch,
        slots: Slots, wanted: frozenset[str], guards: Guards, loss_so_far: Callable[[], Tensor | float | None],
        event: Callable[[int, str, str], None], guard: Guard,
    ) -> None:  # fmt: skip
        self._subject, self._optimizers, self._scaling, self._parameters = subject, optimizers, scaling, parameters
        self._routers, self._slots, self._wanted, self._guards = routers, slots, wanted, guards
        self._loss_so_far, self._event, self.guard = loss_so_far, event, guard
        self._stepping: Counter[int] = Counter()
        calls = Calls(self._before_update, self._after_update, self._adopt, lambda: any(self._stepping.values()))
        self._steppers = Steppers(subject.model, optimizers, calls, guard)
        self.remove = self._steppers.remove

    def begin_step(self, step: int, sampling: bool) -> None:
        """Forget the step before."""
        self._step, self._sampling = step, sampling
        self.scalars: dict[str, Tensor | float] = {}
        self.norms: dict[tuple[str, int], Tensor] = {}
        self._held: dict[tuple[str, int], Tensor | None] = {}
        self.rates: dict[int, float] = {}
        self._stepping.clear()
        self._gradients_read = self.unlike_rows = self.updated = False
        self._note_scale()

    def ready(self, optimizer: Optimizer | None) -> None:
        """Read the gradients before they are clipped, all of them or one optimizer's."""
        self._note_scale()
        self._renew()
        for some in [unwrapped(optimizer)] if optimizer is not None else self._scaling.groups(self._optimizers):
            self._read_gradients("grad", some, self._scaling.pending(some, self.scalars.get("loss_scale")))
        self._gradients_read = True

    def _renew(self) -> None:
        """Take in what has become of the model's parameters."""
        if not self._subject.keeps(self._parameters.ends):
            self._parameters.take_in(self._subject.trainable())
        self._parameters.adopt(self._optimizers, self._subject.trainable)

    @guarded("an optimizer that came later")
    def _adopt(self, optimizer: Optimizer, gone: Sequence[Optimizer]) -> None:
        """Observe an optimizer that is about to step for the first time."""
        if self._parameters.adopt([optimizer], self._subject.trainable) and self._gradients_read:
            self._forget_gradients()
        text = adopted(optimizer, gone)
        self.guard.say(f"{text}, which attach() was not told of: it is observed from step {self._step} on", once=text)
        self._event(self._step, "optimizer_adopted", text)

    @guarded("reading the loss scale")
    def _note_scale(self) -> None:
        """Keep the factor that this step's loss is multiplied by, before the scaler moves on to the next."""
        factor = self._scaling.now()
        if factor is not None:
            self.scalars["loss_scale"] = factor

    def _begin_unscaled(self) -> None:
        """Forget what was read of this step's gradients: a scaler that nobody told of had multiplied them."""
        self._forget_gradients()
        self.guard.say(
            "a gradient scaler steps the optimizer and was not passed to attach(), so gradients are recorded unscaled from "
            f"step {self._step} on: pass scaler= to have those before"
        )

    def _forget_gradients(self) -> None:
        self.norms.clear()
        self._held.clear()
        self.scalars.pop("grad_norm", None)
        self.unlike_rows, self._gradients_read = self._gradients_read, False

    def _read_gradients(self, tap: str, optimizer: Optimizer | None, scale: Tensor | float | None) -> None:
        mine = None if optimizer is None else self._parameters.owned(optimizer)
        if self._sampling and "expert_grad" in self._wanted and not (tap == "grad_clipped" and self._gradients_read):
            self._routers.read_gradients(self._slots, scale)
        norm = self._parameters.gradients(tap, scale, mine, keep=self._sampling and tap in self._wanted)
        held = self._parameters.held_norm
        if held is not None or norm is not None:
            self._held[tap, id(optimizer)] = norm if held is None else held
        if norm is not None:
            self.norms[tap, id(optimizer)] = norm
            name = "grad_norm" if tap == "grad" else "grad_norm_clipped"
            self.scalars[name] = sum(n**2 for (t, _), n in self.norms.items() if t == tap) ** 0.5

    @guarded("reading parameters before the update")
    def _before_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Read now, or, where the optimizer computes the gradients itself by a closure, when it has done so."""
        self._stepping[id(optimizer)] += 1
        if self._stepping[id(optimizer)] > 1:  # a step that calls that of the class it is derived from
            return None

        def ready() -> None:
            self._read_before(optimizer)
            self._guards.before_update(optimizer, self._held, self._loss_so_far())

        return after_closure(ready, args, kwargs)

    @guarded("reading parameters before the update")
    def _read_before(self, optimizer: Optimizer) -> None:
        if not self.updated and self._scaling.adopted():
            self._begin_unscaled()
        self.updated = True
        self._note_scale()
        if not self._gradients_read:
            self._renew()
        self.scalars["lr"] = highest_rate([optimizer], self.scalars.get("lr"))
        if getattr(optimizer, "found_inf", None) is not None:  # a fused optimizer skips by itself
            self.scalars["skipped"] = optimizer.found_inf.detach().clone()  # type: ignore[attr-defined]
        if self._sampling:
            self.rates |= self._parameters.learning_rates([optimizer])
            self._parameters.before_update(optimizer)
        if self._sampling or not self._gradients_read:
            scale = getattr(optimizer, "grad_scale", None)  # set while a fused optimizer has yet to unscale
            self._read_gradients("grad_clipped", optimizer, scale)

    @guarded("reading parameters after the update")
    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._stepping[id(optimizer)] -= 1
        if self._stepping[id(optimizer)]:
            return
        if self._sampling:
            self._parameters.after_update(optimizer)
        if self._guards.after_update(optimizer):
            self.scalars["skipped"] = BY_GUARD
