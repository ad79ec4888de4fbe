"""The black box of a lens: keeps the last steps, and dumps them when something goes wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox import folder
from stabilitylens.hooks.blackbox.alarm import ATTENTION_LOGITS, Alarm
from stabilitylens.hooks.blackbox.crowd import Alone, Apart
from stabilitylens.hooks.blackbox.dumping import Dump, dump
from stabilitylens.hooks.blackbox.evidence import INCIDENTS
from stabilitylens.hooks.blackbox.forwards import Forwards, as_called, named_arguments
from stabilitylens.hooks.blackbox.memory import memory_of
from stabilitylens.hooks.blackbox.options import BlackBox
from stabilitylens.hooks.blackbox.plain import MASKED, NAMELESS, Keeping, nameless
from stabilitylens.hooks.blackbox.randoms import RandomState, random_state
from stabilitylens.hooks.blackbox.replicas import is_replica, told_by_the_first
from stabilitylens.hooks.blackbox.restoring import put_back
from stabilitylens.hooks.blackbox.ring import MicroBatch, Ring, StepRecord
from stabilitylens.hooks.blackbox.rolling import Rolling
from stabilitylens.hooks.blackbox.setting import setting_of
from stabilitylens.hooks.blackbox.snapshot import Snapshot, gradients_of, take
from stabilitylens.hooks.blackbox.splitting import apart
from stabilitylens.hooks.blackbox.turns import Turns
from stabilitylens.hooks.guard import Guard, guarded
from stabilitylens.hooks.subject import Subject

_NUMBERS = (bool, int, float, tuple, torch.Tensor)


class Box:
    """Made by :func:`stabilitylens.attach` where it is given ``blackbox=``.

    Args:
        options: what is kept.
        subject, optimizers, scaler: what is trained.
        logdir: the run's folder.
        step_number: tells the number of the step that is under way.
        event: records something that happened at a step: kind and text.
        looks: whether what runs now is a part of the step.
        crowd: the processes that dump together.
    """

    def __init__(
        self, options: BlackBox, subject: Subject, optimizers: Sequence[Optimizer], scaler: Any, logdir: Path, guard: Guard,
        step_number: Callable[[], int], event: Callable[[int, str, str], None], looks: Callable[[], bool],
        crowd: Alone,
    ) -> None:  # fmt: skip
        self.options, self.guard = options, guard
        self._model, self._optimizers, self._scaler = subject.model, optimizers, scaler
        self._device, self._step_number, self._turns, self._looks = subject.device, step_number, Turns(event), looks
        self._incidents, self._crowd, self._apart, self._dumping = logdir / INCIDENTS, crowd, False, False
        schedulers = options.scheduler if isinstance(options.scheduler, (list, tuple)) else [options.scheduler]
        self._schedulers = [s for s in schedulers if s is not None]
        self._ring, self._alarm = Ring(options.steps, options.max_bytes), Alarm()
        self._record, self._given, self._last = StepRecord(), False, 0
        place = logdir / INCIDENTS.parent / "snapshots" if options.snapshot == "disk" else None
        self._replica = crowd.several and is_replica(subject)
        self._holds = crowd.rank == 0 or not self._replica
        self._rolling = (
            Rolling(options.snapshot_every, self._take, place, self._not_written, crowd.several) if options.snapshot_every and self._holds else None
        )
        self._forwards = Forwards(subject.holders, self._forward)
        self._handles: dict[int, list[Any]] = {}
        self._listen()
        if not crowd.several:
            folder.sweep(self._incidents)
        self._says = memory_of(options, self._model, optimizers) if self._rolling is not None else ""
        if self._says:
            guard.say(self._says)

    # what the loop does

    def batch(self, batch: Any, ids: Any) -> None:
        """Keep what the loop hands over in place of the forwards' inputs."""
        if not self._looks():
            return
        if not self._given:
            self._given = True
            self._record.micro.clear()
        self._keep(batch, ids, self._begin())

    @guarded("keeping the inputs of a forward")
    def _forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._looks():
            return
        random = self._begin()
        self._record.forwards.append(random)
        if not self._given:
            named = named_arguments(module, args, kwargs) if self.options.hidden else None
            self._keep(as_called(args, kwargs) if named is None else named, None, random, told=named is not None)

    def _begin(self) -> RandomState:
        """The random states as they are now; the first time in a step, the snapshot too."""
        if self._rolling is not None and not self._record.micro and not self._record.forwards:
            with self._turns.taken():
                self._rolling.before(self._step_number())
        self._listen()
        return random_state(self._device)

    def _listen(self) -> None:
        """Hear of every step of every optimizer; the lens may come to know more of them."""
        for optimizer in self._optimizers:
            if id(optimizer) not in self._handles:
                before, after = (torch.compiler.disable(act) for act in (self._stepping, self._stepped))
                self._handles[id(optimizer)] = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

    def _keep(self, batch: Any, ids: Any, random: RandomState, told: bool = True) -> None:
        """Keep a micro-batch; ``told`` is whether its parts have the names that a mask may hide."""
        mask, kept = self.options.mask, None
        keeping = Keeping(self.options.max_bytes - self._record.size, self.options.hidden)
        if self.options.hidden and (not told or nameless(batch)):
            keeping.refuse(NAMELESS)
        else:
            kept = keeping.take(mask(batch) if callable(mask) else batch)
        of_ids = Keeping(self.options.max_bytes - self._record.size - keeping.size)
        given = of_ids.take(ids, "ids")
        for place, why in (keeping.left_out | of_ids.left_out).items():
            if why != MASKED:
                self.guard.say(f"the black box does not keep {place}: {why}", once=f"black box {place}")
        self._record.micro.append(MicroBatch(kept, random, keeping, given, of_ids))

    @guarded("keeping what an optimizer steps with")
    def _stepping(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) < 2 and kwargs.get("closure") is None:  # a closure has the backward still before it
            self._record.look_at_gradients()
        groups = [{k: v for k, v in g.items() if isinstance(v, _NUMBERS)} for g in optimizer.param_groups]
        self._record.groups[self._optimizers.index(optimizer)] = Keeping(1 << 20).take(groups)

    @guarded("telling whether gradients were added to")
    def _stepped(self, *_: Any) -> None:
        self._record.look_at_gradients()

    def end_step(self, step: int, scalars: dict[str, Any]) -> None:
        """A step has ended; dump it if it is an incident, for this process or another."""
        with self._turns.taken():
            self._turns.take_over()
            self._end_step(step, scalars)

    def _end_step(self, step: int, scalars: dict[str, Any]) -> None:
        found = self._look(step, scalars) or []
        if self._apart:
            return
        try:
            trouble = self._crowd.first_trouble(found)
            if trouble is not None:
                number, kinds = trouble
                if self._dump(number, kinds, f"step {number}: {' and '.join(kinds)}") is not None:
                    self._alarm.dumped(number)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._apart = isinstance(error, Apart)
        if isinstance(error, (Apart, folder.TooLarge)):
            self.guard.say(str(error), once=type(error).__name__)
        else:
            self.guard.failed("dumping an incident", error)

    @guarded("the black box")
    def _look(self, step: int, scalars: dict[str, Any]) -> list[tuple[int, list[str]]]:
        """Keep the step; the steps with trouble among those whose scalars have arrived by now."""
        if step <= self._last:  # the training went back to a checkpoint
            self._ring.clear()
        if self._says:
            self._turns.note(step, "black_box", self._says)
            self._says = ""
        if not self._record.micro:
            self.guard.say(
                "the black box sees no forward of the model in training, as in a compiled graph, so no batch is kept: "
                "call lens.batch(batch) before each forward"
            )
        self._record.step, self._last = step, step
        self._ring.add(self._record)
        self._record = StepRecord()
        self._alarm.note(step, scalars)
        return self._arrived()

    def _arrived(self, wait: bool = False) -> list[tuple[int, list[str]]]:
        trouble = []
        for number, known, kinds in self._alarm.arrived(wait):
            for record in self._ring.upto(number):
                if record.step == number:
                    record.scalars = known
            if kinds:
                trouble.append((number, sorted(kinds)))
        return trouble + [(step, [ATTENTION_LOGITS]) for step in self._alarm.sampled()]

    @guarded("the black box")
    def note_sample(self, step: int, arrays: Mapping[str, Any]) -> None:
        """Look at what a sampled step showed; what is found is dumped when the next step ends."""
        logits = arrays.get("max_attn_logit/attention_head")
        if logits is not None and np.isfinite(logits).any():
            with self._turns.taken():
                self._alarm.note_logits(step, float(np.nanmax(logits)))

    # dumping

    def dump(self, reason: str) -> Path | None:
        """Dump the step that ended last; from any thread, for no step ends while one is dumped."""
        if self._crowd.several and self._turns.elsewhere:
            self.guard.say("of several processes only the threads that train can dump together: call lens.dump() where lens.step() is called")
            return None
        with self._turns.taken():
            if self._dumping:
                self.guard.say("lens.dump() was called while an incident is written, as by the handler of a signal, and writes no other")
                return None
            self._arrived(wait=True)
            try:
                return self._dump(self._last, ["asked"], reason)
            except Exception as error:
                self._failed(error)
                return None

    def _dump(self, step: int, kinds: list[str], reason: str) -> Path | None:
        self._dumping = True
        try:
            return self._written(step, kinds, reason)
        finally:
            self._dumping = False

    def _written(self, step: int, kinds: list[str], reason: str) -> Path | None:
        kept = self._ring.upto(step)
        here = bool(kept) and kept[-1].step == step
        if not all(self._crowd.exchange(here)):
            self.guard.say(f"nothing of step {step} is kept any more, so it can't be dumped")
            return None
        if self._device.type != "cpu":
            torch.get_device_module(self._device).synchronize(self._device)
        stored = self._rolling.stored() if self._rolling is not None else []
        budget = self.options.budget_bytes
        given = Dump(step, kinds, reason, setting_of(self._model), kept, stored, self._rolling is not None, self._split, budget)
        path, gone = dump(self._incidents, given, self._crowd)
        for name in gone:
            self._turns.note(step, "incident_removed", f"{name} made room: incidents may take {budget / 1e9:g} GB")
        self._turns.note(step, "incident_dumped", f"{reason}; {len(kept)} steps are kept in {path.name}")
        return path

    def _split(self, snapshot: Snapshot) -> tuple[Snapshot, dict[str, Any]]:
        return apart(snapshot, self._model, self._optimizers)

    # snapshots

    def _take(self, step: int, reuse: Any) -> Any:
        self._record.left = gradients_of(self._model)
        return take(step, self._model, self._optimizers, self._schedulers, self._scaler, reuse)

    def _not_written(self, sentence: str) -> None:
        self.guard.say(sentence, once="snapshot not written")

    def roll_back(self) -> int:
        """Put the older snapshot back, on every process, and begin to keep anew.

        Returns:
            The step that it was taken before.

        Raises:
            BadInput: none is kept yet.
        """
        with self._turns.taken():
            snapshot = self._rolling.oldest() if self._rolling is not None else None
            if self._replica:
                snapshot = told_by_the_first(snapshot)
            if snapshot is None:
                raise BadInput("no snapshot is kept yet, so nothing can be rolled back to")
            put_back(snapshot, self._model, self._optimizers, self._schedulers, self._scaler)
            self._ring.clear()
            return snapshot.step

    def close(self) -> None:
        """Take the hooks off and let go of everything that is kept."""
        self._forwards.remove()
        for handle in itertools.chain(*self._handles.values()):
            handle.remove()
        with self._turns.taken():  # a dump that another thread has begun is finished
            self._turns.take_over()
            self._ring.clear()
            self._crowd.leave()
            if self._rolling is not None:
                self._rolling.close()
