"""What a counterfactual is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from stabilitylens.registry import Registry, page_of
from stabilitylens.suspects._suspect import STRONG

if TYPE_CHECKING:
    from stabilitylens.hooks.counterfactuals._trial import Trial

#: changes one thing about a trial that stands at the snapshot
Try: TypeAlias = "Callable[[Trial], None]"


class NotApplicable(Exception):
    """A counterfactual can't be tried on this incident; its text says why."""


@dataclass(frozen=True)
class Counterfactual:
    """One suspected cure: its name (its file's), its page, and what it is evidence of.

    Attributes:
        suspect: the cause that it tests; None where it is a cure that tells no cause.
        weight: of its verdict, in nats of log odds, for that suspect or against it; 0 without one.
    """

    name: str
    page: str
    act: Try
    suspect: str | None
    weight: float


COUNTERFACTUALS: Registry[Counterfactual] = Registry("stabilitylens.hooks.counterfactuals")


def counterfactual(*, suspect: str | None = None, weight: float = STRONG) -> Callable[[Try], Try]:
    """Register a counterfactual under its function's name, which is its file's; see :class:`Counterfactual`."""

    def register(act: Try) -> Try:
        name = getattr(act, "__name__", "")
        COUNTERFACTUALS.add(name, Counterfactual(name, page_of(act), act, suspect, weight if suspect else 0.0), act)
        return act

    return register
