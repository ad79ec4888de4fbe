"""What an action is, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from stabilitylens.registry import Registry, page_of

if TYPE_CHECKING:
    from stabilitylens.hooks.lens import Lens


@dataclass(frozen=True)
class Alarm:
    """Trouble at the step that is under way.

    Attributes:
        kind: ``nonfinite``, ``spike`` (of the loss) or ``grad_spike``.
        step: the step, from 1.
        loss: of the step; None where the loop has not told it yet.
        grad_norm: before clipping where ``lens.grads_ready()`` was called; None where it is not known.
        lens: the lens.
        optimizer: the one that is about to step; None at the end of a step, when the weights have changed.
        options: what :meth:`Lens.on` was given for this action.
    """

    kind: str
    step: int
    loss: float | None
    grad_norm: float | None
    lens: Lens
    optimizer: Optimizer | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        known = {"loss": self.loss, "gradient norm": self.grad_norm}
        values = " and ".join(f"{name} {value:.4g}" for name, value in known.items() if value is not None)
        return f"{self.kind} at step {self.step} ({values})" if values else f"{self.kind} at step {self.step}"


class Cured(str):
    """What an action did, where nothing is left for the guards that were set after it."""


#: does something, and says what it did in a few words; None where it can do nothing now
Act = Callable[[Alarm], str | None]


@dataclass(frozen=True)
class Action:
    """One action: its name (its file's), its page, and what it needs.

    Attributes:
        early: whether it has to act before the optimizer does: such an action hears only of what can be seen by then.
        takes: the options that :meth:`Lens.on` may be given for it.
        check: raises ``BadInput`` for options or a lens that it can't work with.
    """

    name: str
    page: str
    act: Act
    early: bool = False
    takes: tuple[str, ...] = ()
    check: Callable[[Lens, dict[str, Any]], None] | None = None


ACTIONS: Registry[Action] = Registry("stabilitylens.hooks.guards")


def action(
    name: str, *, early: bool = False, takes: tuple[str, ...] = (), check: Callable[[Lens, dict[str, Any]], None] | None = None
) -> Callable[[Act], Act]:
    """Register an action under the name that :meth:`Lens.on` takes; see :class:`Action`."""

    def register(act: Act) -> Act:
        ACTIONS.add(name, Action(name, page_of(act), act, early, takes, check), act)
        return act

    return register
