"""Comparison: what tells two or more runs apart, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TextIO

from stabilitylens.comparison._many import Shared, has_failed, nearest, shared
from stabilitylens.comparison._parting import Parting, partings
from stabilitylens.comparison._ratios import Ratios, ratios
from stabilitylens.comparison._traits import Difference, differences
from stabilitylens.document import Document
from stabilitylens.incidents import Incident, detect
from stabilitylens.run import Run


@dataclass(frozen=True)
class Pair:
    """Two runs side by side; ``a`` and ``b`` are positions among the runs.

    Attributes:
        partings: every series that both have, the first to part first.
        ratios: tables by layer, where both are recordings of models of one shape.
    """

    a: int
    b: int
    partings: tuple[Parting, ...]
    ratios: tuple[Ratios, ...]

    @property
    def first(self) -> Parting | None:
        """The first series to part after a common start; else the first that differs from the start on."""
        return next((parting for parting in self.partings if parting.step is not None), None)


@dataclass(frozen=True)
class Comparison(Document):
    """What tells runs apart. ``str(comparison)`` is the text.

    Attributes:
        runs: in the order they were given.
        incidents: of each run.
        differences: traits that the headers say are not the same.
        pairs: two runs: the pair; more: each failed run with its nearest healthy one, or each run with the first.
        shared: with more than two runs, the traits that go with failing.
        neighbours: with more than two runs, the nearest healthy run of each failed one, by position.
    """

    runs: tuple[Run, ...]
    incidents: tuple[tuple[Incident, ...], ...]
    differences: tuple[Difference, ...]
    pairs: tuple[Pair, ...]
    shared: tuple[Shared, ...]
    neighbours: dict[int, int]

    @property
    def failed(self) -> tuple[bool, ...]:
        """Whether each run has an incident that is an error."""
        return tuple(has_failed(incidents) for incidents in self.incidents)

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        if len(self.runs) == 2:
            return _of_two(self.pairs[0], self.differences)
        n = sum(self.failed)
        best = next((row for row in self.shared if row.separates), None)
        told = f"{n} of {len(self.runs)} runs failed"
        return told + (f"; {best}" if best else "; no trait of their headers tells them from the others" if n and n < len(self.runs) else "")

    def _repr_html_(self) -> str:
        return f"<p><strong>compare</strong>: {escape(self.headline)}</p>"

    def write(self, stream: TextIO, form: str) -> None:
        """Write it as ``text``, ``json`` or ``html``."""
        from stabilitylens.comparison._writers import WRITERS

        WRITERS[form](self, stream)


def _of_two(pair: Pair, found: Sequence[Difference]) -> str:
    first = pair.first
    if first is None:
        told = "the runs do not part beyond noise in any series" if pair.partings else "the runs have no series in common"
    elif first.from_start:
        told = f"the runs differ from the start, most in {first.series}"
    else:
        equal = next((p.equal_until for p in pair.partings if p.series == "loss"), None)
        told = f"the runs part at step {first.step}, first in {first.series}"
        told += f" ({first.where})" if str(first.where) != "the whole model" else ""
        told += f"; the loss is equal to the bit up to step {equal}" if equal is not None else ""
    names = [difference.trait for difference in found]
    return told + (f"; their headers differ in {', '.join(names[:6])}" if names else "")


def comparison(runs: Sequence[Run]) -> Comparison:
    """Compare two or more runs."""
    incidents = tuple(tuple(detect(run)) for run in runs)
    found = differences(runs)
    failed = [has_failed(each) for each in incidents]
    neighbours = nearest(runs, found, failed) if len(runs) > 2 else {}
    which = [(j, i) for i, j in neighbours.items()] or [(0, i) for i in range(1, len(runs))]
    pairs = tuple(Pair(a, b, tuple(partings(runs[a], runs[b])), tuple(ratios(runs[a], runs[b]))) for a, b in which)
    together = shared(found, failed) if len(runs) > 2 else []
    return Comparison(tuple(runs), incidents, tuple(found), pairs, tuple(together), neighbours)
