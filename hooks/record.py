"""Hands what was observed over to the Run, and keeps its header true."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens import __version__
from stabilitylens.anatomy import Anatomy
from stabilitylens.errors import BadInput
from stabilitylens.header import Coverage, Header
from stabilitylens.hooks.cadence import BY_GUARD, Every, describe
from stabilitylens.hooks.coverage import coverage, unread
from stabilitylens.hooks.distributed import Ranks
from stabilitylens.hooks.guard import Guard
from stabilitylens.hooks.parameters import ParameterTaps
from stabilitylens.hooks.per_rank import RANK_METRICS
from stabilitylens.hooks.ring import RING, Waiting, without_gradients
from stabilitylens.hooks.sample import Layout
from stabilitylens.hooks.subject import Subject
from stabilitylens.hooks.taps import ForwardTaps
from stabilitylens.hooks.whole import WholeParameters, WholeSubject, WholeTaps
from stabilitylens.metrics import METRICS, Metric
from stabilitylens.recipe import Recipe
from stabilitylens.writers.recording import RunWriter, is_begun

Scalars = dict[str, Tensor | float]
#: seconds between looks whether the files are still there, each of which takes 13 µs
LOOK = 1.0


def _is_away(value: Tensor | float) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"


class Recorder:
    """Writes steps, samples and events; on an asynchronous device scalars wait for the next sample.

    Where the folder holds a run already, a session that goes on with it opens with its first record: only then
    is it known at which step it begins, and one that dies before it has recorded anything supersedes nothing.

    Of several processes the first one records, so that a run has one writer; scalars wait for the next sample, when
    those of all processes are put together.

    Args:
        logdir: the run's folder.
        ranks: the processes that train together, None for a single one.
    """

    def __init__(
        self,
        logdir: Path,
        subject: Subject,
        recipe: Recipe,
        every: Every,
        metrics: Sequence[Metric],
        anatomy: Anatomy | None,
        guard: Guard,
        ranks: Ranks | None = None,
    ) -> None:
        self._subject, self.guard, self._ranks = subject, guard, ranks
        self._left_out = tuple(m.name for m in METRICS if m not in metrics and not m.every_step and not m.opt_in)
        self._asked = tuple(m for m in metrics if m.opt_in)
        self._logdir = logdir.absolute()
        self._writer: RunWriter | None = None
        self._looked, self._gone = time.monotonic(), ""
        self._ring: list[tuple[int, Scalars]] = []
        versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
        self._header = Header(
            created=time.time(),
            metrics={m.name: m.meta for m in METRICS if not m.opt_in or m in metrics} | (RANK_METRICS if ranks else {}),
            labels={"layer": tuple(subject.blocks)},
            anatomy=anatomy,
            recipe=recipe,
            sampling={"every": describe(every)},
            versions=versions | {"stabilitylens": __version__},
        )
        if self.writes and not is_begun(logdir):
            self._writer = RunWriter(logdir)
            self._writer.header(self._header)

    @property
    def writes(self) -> bool:
        """Whether this process keeps the record."""
        return self._ranks is None or self._ranks.writes

    @property
    def full(self) -> bool:
        """Whether as many steps wait as may."""
        return len(self._ring) >= RING

    @property
    def anatomy(self) -> Anatomy | None:
        """What the next header says of the model."""
        return self._header.anatomy

    @anatomy.setter
    def anatomy(self, anatomy: Anatomy | None) -> None:
        self._header = replace(self._header, anatomy=anatomy)

    @property
    def coverage(self) -> Coverage:
        """What has been seen so far of what there is."""
        return self._header.coverage

    def resume(self) -> None:
        """Start a new session with the next record; what an earlier one recorded from there on is superseded."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _open(self, step: int) -> RunWriter:
        if self._writer is None:
            self._writer = RunWriter(self._logdir, resume_step=step)
            self._writer.header(self._header)
        return self._writer

    def _look_after(self, step: int) -> None:
        """Go on in new files where those of this session were deleted or moved, or their disk is gone."""
        if self._writer is not None and not self._writer.in_place():
            with suppress(OSError):
                self._writer.close()
            self._writer = None
            self._gone = f"the record in {self._logdir} was deleted or moved, or its disk is gone, before step {step}"
            self.guard.say(f"{self._gone}; it goes on there in new files", once="a record that is gone")
        if not self._gone:
            return
        try:
            self._open(step)
        except BadInput as error:
            self.guard.say(f"{error}; nothing is recorded until that can be done", once="a record that can't be made again")
            return
        text, self._gone = self._gone, ""
        self.event(step, "record_gone", text)

    def step(self, step: int, scalars: Scalars) -> None:
        """Record the scalars of a step, at once where they are on the host, else with the next sample."""
        self._ring.append((step, scalars))
        if self._ranks is None and not self.on_device():
            self.flush()

    def on_device(self) -> list[Tensor]:
        """Scalars of the steps that wait that are not on the host, in order."""
        return [v for _, scalars in self._ring for v in scalars.values() if isinstance(v, Tensor) and _is_away(v)]

    def arrived(self, numbers: Iterable[float]) -> None:
        """Put what :meth:`on_device` named in place, now that it is on the host."""
        host = iter(numbers)
        for _, scalars in self._ring:
            scalars |= {name: next(host) for name, v in scalars.items() if _is_away(v)}

    def flush(self) -> None:
        """Write every step that waits."""
        if self.writes:
            waiting = self.take()
            self.write(without_gradients(waiting) if self._ranks is not None and self._subject.sharded else waiting)

    def take(self) -> Waiting:
        """The steps that wait, no longer: one copy from the device for all of them."""
        ring, self._ring = self._ring, []
        tensors = [v.detach().double().reshape(()) for _, scalars in ring for v in scalars.values() if isinstance(v, Tensor)]
        host = iter(torch.stack(tensors).tolist() if tensors else [])
        return [
            (step, {k: next(host) if isinstance(v, Tensor) else float(v) for k, v in scalars.items()})
            for step, scalars in ring
        ]

    def write(self, waiting: Waiting) -> None:
        """Record the scalars of steps."""
        if waiting and time.monotonic() >= self._looked + LOOK:
            self._looked = time.monotonic()
            self._look_after(waiting[0][0])
        for step, numbers in waiting if not self._gone else ():
            why = numbers.pop("skipped", 0.0)
            skipped = why > 0
            self._open(step).step(step, numbers | ({"skipped": 1.0} if skipped else {}))
            if why == BY_GUARD:
                self.event(step, "step_skipped", "a guard kept the optimizer from its step")
            elif skipped:
                scale = f": the gradients overflowed at loss scale {numbers['loss_scale']:g}" if "loss_scale" in numbers else ""
                self.event(step, "step_skipped", f"the optimizer took no step{scale}")

    def event(self, step: int, kind: str, text: str) -> None:
        """Record something that happened."""
        if not self.writes or self._gone:
            return
        self._open(step).event(step, kind, text)

    def sample(
        self,
        step: int,
        arrays: Mapping[str, Float[np.ndarray, "*where"]],
        layout: Layout,
        taps: ForwardTaps | WholeTaps,
        parameters: ParameterTaps | WholeParameters,
        subject: Subject | WholeSubject | None = None,
    ) -> None:
        """Record the arrays of a sampled step, after a header that says what they are if that has changed."""
        if self._gone:
            return
        writer, header = self._open(step), self._header
        labels = layout.labels() | {"branch": tuple(taps.branch_kinds[i] for i in sorted(taps.branch_kinds))}
        seen = coverage(subject or self._subject, taps, parameters, arrays, self._left_out, self._asked)
        seen = replace(seen, tied=self._subject.tied)
        if (why := unread(header.anatomy)) is not None:
            seen = replace(seen, not_observed=(*seen.not_observed, ("anatomy", why)))
        recipe = header.recipe
        if recipe is not None and recipe.precision is None:
            recipe = replace(recipe, precision=taps.precision)
        if (labels, seen, recipe) != (header.labels, header.coverage, header.recipe):
            self._header = replace(header, labels=labels, coverage=seen, recipe=recipe)
            writer.header(self._header)
        # the every-step scalars are recorded already, and a second value at the same step would hide the first
        writer.sample(step, {k: v for k, v in arrays.items() if k not in ("grad_norm", "grad_norm_clipped")})
        for place, count in self.guard.failures.items():
            writer.event(step, "lens_failure", f"{place}: {count} so far")

    def close(self, step: int) -> None:
        """Write what waits and close the files."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
