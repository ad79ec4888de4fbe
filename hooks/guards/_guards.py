"""Which alarms lead to which actions: judged before the update as far as can be, and by all processes alike."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stabilitylens.errors import BadInput, TrainingStopped
from stabilitylens.hooks.blackbox.randoms import RandomState, put_back, random_state
from stabilitylens.hooks.copies import BeforeHook
from stabilitylens.hooks.guard import guarded
from stabilitylens.hooks.guards._action import ACTIONS, Act, Action, Alarm, Cured
from stabilitylens.hooks.guards._gradients import Hidden
from stabilitylens.incidents._online import OnlineDetector
from stabilitylens.registry import page_of

if TYPE_CHECKING:
    from stabilitylens.hooks.lens import Lens

#: what a guard can be set on; ``any`` is all of them
KINDS = ("nonfinite", "spike", "grad_spike")


@dataclass
class _Rule:
    kind: str
    action: Action
    at_most: int
    options: dict[str, Any] = field(default_factory=dict)
    done: int = 0
    said: bool = False


class Guards:
    """The guards of one lens.

    Args:
        lens: the lens.
        agree: whether any process says yes, the same answer in all of them; None where the processes can't decide together.

    Attributes:
        dense_until: every step up to this one is to be sampled.
        quiet: whether the lens is to look away for a moment.
        updating: whether they act within an optimizer's step, which goes through the hooks that a lens has on it.
    """

    def __init__(self, lens: Lens, agree: Callable[[bool], bool | None]) -> None:
        self.guard = lens.guard
        self.dense_until = 0
        self._lens, self._agree = lens, agree
        self.quiet = self.updating = False
        self._hidden: dict[int, Hidden] = {}
        self._later: list[Callable[[], object]] = []
        self._random: RandomState | None = None
        self._keeps: Any = None
        self._rules: list[_Rule] = []
        self._loss = OnlineDetector()
        self._gradients: dict[int, OnlineDetector] = {}
        self._judged: float | None = None
        self._found: set[str] = set()

    def add(self, kind: str, action: str | Act, at_most: int, options: dict[str, Any]) -> None:
        """Set a guard; see :meth:`Lens.on`.

        Raises:
            BadInput: there is no such kind, action or option, or the action can't work with this lens.
        """
        if kind not in (*KINDS, "any"):
            raise BadInput(f"lens.on({kind!r}, …): there is no such kind of incident while a step runs; it is one of {', '.join(KINDS)} or any")
        if type(at_most) is not int or at_most < 1:
            raise BadInput(f"lens.on(…, at_most={at_most!r}): pass how often the action may be taken, a whole number from 1")
        known = self._action(action)
        unknown = sorted(options.keys() - set(known.takes))
        if unknown:
            takes = f"it takes {', '.join(known.takes)}" if known.takes else "it takes none"
            raise BadInput(f"lens.on({kind!r}, {known.name!r}) knows no option {', '.join(unknown)}; {takes}")
        if known.check is not None:
            known.check(self._lens, options)
        self._rules += [_Rule(one, known, at_most, options) for one in (KINDS if kind == "any" else (kind,))]

    @staticmethod
    def _action(action: Any) -> Action:
        if callable(action):
            return _function(action)
        if action not in ACTIONS.names():  # which takes a list, say, for none of them
            raise BadInput(f"lens.on(…, {action!r}): there is no such action; it is one of {', '.join(ACTIONS.names())}, or a function")
        return ACTIONS[action]

    # the loop's moments

    @guarded("the guards before the update")
    def before_update(self, optimizer: Optimizer, norms: Mapping[tuple[str, int], Tensor | None], loss: Tensor | float | None) -> None:
        """Judge what is known when an optimizer is about to step, and act."""
        if not self._rules:
            return
        places = (("grad", id(optimizer)), ("grad", id(None)), ("grad_clipped", id(optimizer)))
        grad_norm = next((float(norm) for place in places if (norm := norms.get(place)) is not None), None)
        self._judge_loss(loss)
        self._found |= self._gradients.setdefault(id(optimizer), OnlineDetector()).update(None, grad_norm)
        self.updating = True
        try:
            self._act(Alarm("", self._lens.step_number, self._judged, grad_norm, self._lens, optimizer))
        finally:
            self.updating = False

    @guarded("the guards after the step")
    def after_step(self, scalars: Mapping[str, Tensor | float]) -> None:
        """Judge a loss that is told only now, and act where nothing was done before the update."""
        if not self._rules:
            return
        self._judge_loss(scalars.get("loss"))
        norm = scalars.get("grad_norm", scalars.get("grad_norm_clipped"))
        try:
            self._act(Alarm("", self._lens.step_number, self._judged, None if norm is None else float(norm), self._lens))
            while self._later:
                self._later.pop(0)()
        finally:
            self._found, self._judged, self._random = set(), None, None

    def _judge_loss(self, loss: Tensor | float | None) -> None:
        if self._judged is None and loss is not None:
            self._judged = float(loss)
            self._found |= self._loss.update(self._judged, None)

    # what actions do

    def hide_gradients(self, optimizer: Optimizer) -> None:
        """Take every gradient away from an optimizer until it has stepped."""
        self._hidden.setdefault(id(optimizer), Hidden(optimizer))

    def after_update(self, optimizer: Optimizer) -> bool:
        """Give back what was hidden; whether anything was."""
        hidden = self._hidden.pop(id(optimizer), None)
        if hidden is not None:
            hidden.put_back()
        return hidden is not None

    def at_the_end(self, call: Callable[[], object]) -> None:
        """Have something done at the end of the step, once: a second wish for the same step is none."""
        self._later = self._later or [call]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._lens.subject.device

    def keep_random_states(self) -> None:
        """Keep the random states that the first forward of each step begins with."""
        if self._keeps is None:
            self._keeps = self._lens.subject.model.register_forward_pre_hook(BeforeHook(self._keep))
            self._lens.on_close(self._keeps.remove)

    def _keep(self, model: nn.Module, _: object) -> None:
        if model.training and self._random is None and not self.quiet:
            self._random = random_state(self.device)

    def restore_random_states(self) -> None:
        """Begin the step's random numbers anew."""
        if self._random is not None:
            put_back(self._random, self.device)

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """What runs in it is no part of the step that is recorded."""
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    def transient(self, kind: str, optimizer: Optimizer, norm: float) -> bool:
        """Whether a second run of a step shows, on every process, that the first went wrong by itself."""
        still = not math.isfinite(norm) or kind != "nonfinite" and self._gradients[id(optimizer)].gradient_is_far(norm)
        return self._agree(still) is False  # None: nobody can tell for all of them

    # acting

    def _act(self, blank: Alarm) -> None:
        early = blank.optimizer is not None
        for kind in sorted({rule.kind for rule in self._rules}):  # every process asks the same questions in the same order
            everywhere = self._agree(kind in self._found)
            if everywhere is None:
                self._lens.guard.say("guards do nothing here: the processes do not observe together, and one alone must not act")
                return
            if everywhere:
                self._found.discard(kind)
                for rule in self._due(kind, early):
                    if isinstance(self._take(rule, blank), Cured):
                        break

    def _due(self, kind: str, early: bool) -> Iterator[_Rule]:
        for rule in list(self._rules):  # an action may set another guard
            if rule.kind != kind:
                continue
            if rule.action.early and not early:
                self._lens.guard.say(
                    f"a {kind} was seen only after the update, too late to {rule.action.name.replace('_', ' ')}: "
                    "call lens.micro_step(loss) after backward, so that the loss is known before it",
                    once=f"late {kind} {rule.action.name}",
                )
            elif rule.done < rule.at_most:
                yield rule
            elif not rule.said:
                rule.said = True
                self._lens.guard.say(f"the guard {rule.action.name!r} on {kind} has acted {rule.at_most} times and does nothing from here on")

    def _take(self, rule: _Rule, blank: Alarm) -> str | None:
        alarm = replace(blank, kind=rule.kind, options=rule.options)
        rule.done += 1
        done = rule.action.act(alarm)
        if done is not None:
            self._lens.note_event("guard", f"{alarm}: {done}")
        return done


def _function(given: Act) -> Action:
    """An action of the user's own: what it raises ends the training, for that is what they let it do."""
    name = getattr(given, "__name__", "a function")

    def act(alarm: Alarm) -> str:
        try:
            said = given(alarm)
        except Exception as error:
            raise TrainingStopped(f"{alarm}: {name}, set by lens.on(), raised {type(error).__name__}: {error}") from error
        return f"called {name}" + (f", {said}" if isinstance(said, str) else "")

    return Action(name, page_of(given), act)
