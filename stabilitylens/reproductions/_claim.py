"""What a claim is: published words, what they make us expect, and how that is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from stabilitylens.registry import Registry, page_of

#: named numbers that one measurement gives
Numbers = dict[str, float]
#: the numbers of all cells of one seed, by the name of the cell
Table = Mapping[str, Numbers]
Mode = Literal["quick", "full"]
Role = Literal["decisive", "supporting", "corrected"]


@dataclass(frozen=True)
class Expect:
    """A quantity and the range in which it is expected, both ends included; fixed before anything is run.

    Attributes:
        quantity: a key of what the claim's ``conclude`` returns.
        text: what it is, for a reader.
        role: ``decisive``: without it the claim is not reproduced; ``supporting``: without it the claim is reproduced
            in part; ``corrected``: what is true instead, where the claim's own words fail.
    """

    quantity: str
    text: str
    low: float = -math.inf
    high: float = math.inf
    role: Role = "decisive"

    def holds(self, value: float) -> bool:
        """Whether a measured value is as expected; NaN never is."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        cells: what is measured, by name; a name like ``post@16`` is the arm ``post`` at 16 of the picture's x axis.
        seeds: repetitions of every cell.
        seconds: budget of one quiet core; more cores share it.
    """

    cells: Mapping[str, Any]
    seeds: int
    seconds: float


@dataclass(frozen=True)
class Picture:
    """A curve for each arm: a number of the cells named ``arm@x`` against x."""

    number: str
    y: str
    x: str
    log_y: bool = True


class Measure(Protocol):
    """Measures one cell; its name and docstring become the claim's."""

    __name__: str

    def __call__(self, cell: Any, seed: int, folder: Path, /) -> Numbers:
        """The numbers of a cell; recordings go into ``folder``."""


@dataclass(frozen=True)
class Claim:
    """One published claim.

    Attributes:
        name: of its file, with hyphens; ``page``: its docstring.
        paper: who says it, with an address.
        says: what exactly is claimed.
        conclude: from the cells of one seed to the quantities that are expected.
        bigger: what would need a bigger machine.
    """

    name: str
    page: str
    paper: str
    says: str
    expects: tuple[Expect, ...]
    measure: Measure
    conclude: Callable[[Table], Numbers]
    quick: Plan
    full: Plan
    bigger: str
    picture: Picture | None = None

    def plan(self, mode: Mode) -> Plan:
        """The quick plan or the full one."""
        return self.quick if mode == "quick" else self.full

    def with_cells(self, change: Callable[[str, Any], Any]) -> Claim:
        """The claim with another set-up, each cell being what ``change`` makes of its name and value."""
        plans = (replace(p, cells={n: change(n, c) for n, c in p.cells.items()}) for p in (self.quick, self.full))
        quick, full = plans
        return replace(self, quick=quick, full=full)

    @property
    def summary(self) -> str:
        """The first line of the page."""
        return self.page.splitlines()[0]


CLAIMS: Registry[Claim] = Registry("stabilitylens.reproductions")


def claim(
    *,
    paper: str,
    says: str,
    expects: tuple[Expect, ...],
    conclude: Callable[[Table], Numbers],
    quick: Plan,
    full: Plan,
    bigger: str,
    picture: Picture | None = None,
) -> Callable[[Measure], Measure]:
    """Register a claim under the name of the function that measures a cell of it; see :class:`Claim`."""

    def register(measure: Measure) -> Measure:
        name = measure.__name__.replace("_", "-")
        page = page_of(measure)
        CLAIMS.add(name, Claim(name, page, paper, says, expects, measure, conclude, quick, full, bigger, picture), measure)
        return measure

    return register


def at(table: Table, arm: str, number: str) -> tuple[list[float], list[float]]:
    """The x values of an arm's cells, rising, and one number of each."""
    found = sorted((float(name.partition("@")[2]), numbers[number]) for name, numbers in table.items() if name.startswith(f"{arm}@"))
    return [x for x, _ in found], [y for _, y in found]
