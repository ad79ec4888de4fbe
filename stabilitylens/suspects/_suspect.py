"""What a suspect is, and the scales on which evidence for and against it is weighed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stabilitylens.registry import Registry, page_of

if TYPE_CHECKING:
    from stabilitylens.suspects._case import Case

#: weights in nats of log odds; evidence of this size by itself turns 1 in 10 into about 1 in 6, 1 in 3, 2 in 3, 6 in 7.
#: *Heuristic*: no public collection of incidents with known causes is large enough to fit them.
WEAK, FAIR, STRONG, DECISIVE = 0.5, 1.5, 3.0, 4.0
#: a suspect below this is excluded, where more than a weak hint speaks against it. *Heuristic*.
EXCLUDED = 0.02


@dataclass(frozen=True)
class Opinion:
    """What one suspect has to say of one incident.

    Attributes:
        score: 0 to 1, how likely it is; the scores of several suspects need not add up to 1.
        evidence_for, evidence_against: sentences with the numbers in them.
        experiment: the cheapest one that would settle it.
        excluded: whether it can be left out: it is unlikely, and more than a weak hint speaks against it.
    """

    score: float
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    experiment: str = ""
    excluded: bool = False


@dataclass
class Scales:
    """Evidence added up as log odds.

    Args:
        prior: how likely the cause is before anything was looked at. *Heuristic*, each.
    """

    prior: float
    _for: float = 0.0
    _against: float = 0.0
    _pro: list[str] = field(default_factory=list)
    _con: list[str] = field(default_factory=list)

    def pro(self, weight: float, text: str, when: object = True) -> None:
        """Evidence for it, if ``when``."""
        if when:
            self._for += weight
            self._pro.append(text)

    def con(self, weight: float, text: str, when: object = True) -> None:
        """Evidence against it, if ``when``."""
        if when:
            self._against += weight
            self._con.append(text)

    def pro_first(self, weight: float, found: Sequence[object], lead: str = "") -> None:
        """The first of what was found is evidence for it, after ``lead``; nothing where nothing was found."""
        self.pro(weight, f"{lead}{found[0]}" if found else "", found)

    def con_first(self, weight: float, found: Sequence[object], lead: str = "") -> None:
        """The same against it."""
        self.con(weight, f"{lead}{found[0]}" if found else "", found)

    def opinion(self, experiment: str) -> Opinion:
        """The score that prior and evidence come to."""
        odds = math.log(self.prior / (1 - self.prior)) + self._for - self._against
        score = round(1 / (1 + math.exp(-odds)), 3)
        excluded = score < EXCLUDED and self._against >= FAIR
        return Opinion(score, tuple(self._pro), tuple(self._con), experiment, excluded)


class Weigh(Protocol):
    """Weighs one cause for one incident; its name and docstring become the suspect's."""

    __name__: str

    def __call__(self, case: Case, /) -> Opinion:
        """How likely it is, and why."""


@dataclass(frozen=True)
class Suspect:
    """A cause: its name (its file's, with hyphens), its page, and how it is weighed.

    Attributes:
        last: whether it is asked after all others, whose opinions the case then has.
    """

    name: str
    page: str
    weigh: Weigh
    last: bool = False

    @property
    def summary(self) -> str:
        """The first line of the page."""
        return self.page.splitlines()[0]


SUSPECTS: Registry[Suspect] = Registry("stabilitylens.suspects")


def suspect(*, last: bool = False) -> Callable[[Weigh], Weigh]:
    """Register a suspect under the name of its function (underscores become hyphens); see :class:`Suspect`."""

    def register(weigh: Weigh) -> Weigh:
        name = weigh.__name__.replace("_", "-")
        SUSPECTS.add(name, Suspect(name, page_of(weigh), weigh, last), weigh)
        return weigh

    return register
