"""One run from the snapshot with one thing changed, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stabilitylens.hooks.blackbox.alarm import ATTENTION_LOGITS
from stabilitylens.hooks.blackbox.everybody import gathered
from stabilitylens.hooks.blackbox.evidence import Evidence
from stabilitylens.hooks.blackbox.plain import copied, mapped
from stabilitylens.hooks.blackbox.rerun import Rerun
from stabilitylens.hooks.blackbox.restoring import set_group
from stabilitylens.hooks.counterfactuals._member import Counterfactual
from stabilitylens.hooks.counterfactuals._norms import GradientNorms


@dataclass(frozen=True)
class Plan:
    """The steps of every trial.

    Attributes:
        first: the snapshot's; the steps from it to ``last``, the incident's, are run as they were.
        later: what is run after the incident: the kept step that lends random states, and micro-batches, None for its own.
    """

    first: int
    last: int
    later: tuple[tuple[int, Sequence[Any] | None], ...]

    @property
    def end(self) -> int:
        """The last step, as it is counted on from the incident's."""
        return self.last + len(self.later)


@dataclass
class Course:
    """What one trial did, of several processes as one.

    Attributes:
        losses: of each step that was run; the mean over the processes.
        norms, stepped: of all gradients, before the loop clipped them and as the optimizers saw it.
        finite: whether every parameter is, at the end.
        logits: the largest attention logit, NaN where it was not looked at.
    """

    losses: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    stepped: dict[int, float] = field(default_factory=dict)
    finite: bool = True
    logits: dict[int, float] = field(default_factory=dict)

    def note(self, step: int, loss: float, norm: float, stepped: float, logit: float, sharded: bool) -> None:
        """Take a step down, as this process had it; all of them have to. ``sharded``: the norms are of parts of the gradients."""
        losses, norms, seen, logits = zip(*gathered((loss, norm, stepped, logit)), strict=True)
        self.losses[step] = sum(losses) / len(losses)
        self.norms[step], self.stepped[step] = (
            math.sqrt(sum(n * n for n in each) / (1 if sharded else len(each))) for each in (norms, seen)
        )
        self.logits[step] = max((x for x in logits if not math.isnan(x)), default=math.nan)


class Trial:
    """What a counterfactual may look at and change; the model and the optimizers stand at the snapshot.

    Attributes:
        model, optimizers: whatever is done to them and is not state has to be undone by ``stack``.
        evidence: the dumped incident. step: its number. first: the snapshot's.
        baseline: what came of the run without any change.
        drop: steps that are left out, as if they had never been.
        stack: contexts to enter and calls to make at the end of the trial, whatever becomes of it.
        suspect: the cause that the verdict speaks for or against; None for none.
    """

    def __init__(self, rerun: Rerun, plan: Plan, baseline: Course | None, member: Counterfactual | None = None) -> None:
        self._rerun, self._plan = rerun, plan
        self.model: nn.Module = rerun.model
        self.optimizers: list[Optimizer] = rerun.optimizers
        self.evidence: Evidence = rerun.evidence
        self.step, self.first = plan.last, plan.first
        self.baseline = baseline if baseline is not None else Course()
        self.drop: set[int] = set()
        self.stack = ExitStack()
        self.suspect = member.suspect if member is not None else None
        self._act = member.act if member is not None else None
        self._changes: list[Callable[[dict[str, Any]], None]] = []
        self._checks: list[Callable[[], None]] = []
        self._rates: dict[int, dict[str, Any]] = {}

    def change(self, function: Callable[[dict[str, Any]], None]) -> None:
        """Have each parameter group changed before every step, once it is what it was then."""
        self._changes.append(function)

    def before_update(self, function: Callable[[Optimizer], None]) -> None:
        """Have something done whenever an optimizer is about to step."""
        for optimizer in self.optimizers:
            self.stack.callback(optimizer.register_step_pre_hook(lambda o, *_: function(o)).remove)

    def after_update(self, function: Callable[[Optimizer], None]) -> None:
        """Have something done whenever an optimizer has stepped."""
        for optimizer in self.optimizers:
            self.stack.callback(optimizer.register_step_post_hook(lambda o, *_: function(o)).remove)

    def at_end(self, check: Callable[[], None]) -> None:
        """Have something looked at once all steps have been run; it may raise :class:`NotApplicable`."""
        self._checks.append(check)

    def groups(self) -> list[dict[str, Any]]:
        """All parameter groups, as the snapshot has them."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def usual_norm(self) -> float | None:
        """Median of the gradient norms that the optimizers saw before the incident; None where none was seen."""
        before = [n for step, n in self.baseline.stepped.items() if step < self.step and n == n]
        return median(before) if before else None

    def run(self, watch: Callable[[int], None] = lambda _: None) -> Course:
        """Do it; ``watch`` is told of each step before it begins."""
        course, lent = Course(), dict(enumerate(self._plan.later, self.step + 1))
        with self.stack:
            self._rerun.restore()
            self._rates = {id(group): mapped({k: v for k, v in group.items() if k != "params"}, copied) for group in self.groups()}
            largest = self._largest()  # before the change is made, so that it is seen with it
            if self._act is not None:
                self._act(self)
            norms = GradientNorms(self.optimizers, self._rerun.scale, self.stack)
            for step in range(self.first, self._plan.end + 1):
                if step in self.drop:
                    continue
                watch(step)
                norms.begin_step()
                number, batches = lent.get(step, (step, None))
                loss = self._rerun.run(number, batches, change=self._changed(step))
                course.note(step, loss, *norms.of_step(), math.nan if largest is None else largest(), norms.sharded)
            course.finite = all(gathered(all(bool(torch.isfinite(p).all()) for p in self.model.parameters())))
            for check in self._checks:
                check()
        return course

    def _largest(self) -> Callable[[], float] | None:
        """What tells the largest attention logit of a step that has ended, where that is what went wrong."""
        if ATTENTION_LOGITS not in self.evidence.manifest.kinds:
            return None
        from stabilitylens.hooks.counterfactuals._attention import AttentionView

        view = AttentionView(self)

        def largest() -> float:
            found = max((float(x.max()) for x in view.largest.values()), default=math.nan)
            view.forget()
            return found

        return largest

    def _changed(self, step: int) -> Callable[[dict[str, Any]], None]:
        """Each group as it was at a step, after the incident as at the incident's, and then what the counterfactual changes.

        An optimizer that did not step then, as a gradient scaler has it, keeps what it had.
        """
        for i, groups in self.evidence.groups(min(step, self.step)).items():
            self._rates |= {id(group): values for group, values in zip(self.optimizers[i].param_groups, groups, strict=True)}

        def change(group: dict[str, Any]) -> None:
            set_group(group, self._rates[id(group)])
            for function in self._changes:
                function(group)

        return change
