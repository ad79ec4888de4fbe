"""Many runs: which trait the failed ones share, and the healthy run that is nearest to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stabilitylens.comparison._traits import Difference
from stabilitylens.incidents import Incident
from stabilitylens.run import Run

#: points of the loss at most that tell equally distant neighbours apart
EARLY = 50


@dataclass(frozen=True)
class Shared:
    """A trait that goes with failing.

    Attributes:
        trait: e.g. ``recipe.lr``.
        condition: what the failed runs have in common, as ``≥ 0.09`` or ``= none``.
        failed, healthy: how many runs fulfil it, of those that know the trait, and how many those are.
    """

    trait: str
    condition: str
    failed: tuple[int, int]
    healthy: tuple[int, int]

    @property
    def separates(self) -> bool:
        """Whether all that failed have it, and none that is healthy."""
        return self.failed[0] == self.failed[1] and self.healthy[0] == 0 and self.healthy[1] > 0

    def __str__(self) -> str:
        return f"{self.trait} {self.condition}: {self.failed[0]} of {self.failed[1]} failed runs, {self.healthy[0]} of {self.healthy[1]} healthy ones"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, keys as in the JSON contract."""
        return asdict(self)


def has_failed(incidents: Sequence[Incident]) -> bool:
    """Whether a run has an error: a loss that diverged, was not finite, or worse."""
    return any(incident.severity == "error" for incident in incidents)


def shared(found: Sequence[Difference], failed: Sequence[bool]) -> list[Shared]:
    """The traits that go with failing, those that separate first; empty where all failed or none did."""
    if all(failed) or not any(failed):
        return []
    rows = [row for difference in found for row in _conditions(difference, failed)]
    telling = [row for row in rows if row.failed[0] / row.failed[1] > row.healthy[0] / row.healthy[1]]
    return sorted(telling, key=lambda row: row.healthy[0] / row.healthy[1] - row.failed[0] / row.failed[1])


def _conditions(difference: Difference, failed: Sequence[bool]) -> list[Shared]:
    """For a number the bounds of the failed runs, for anything else their values."""
    bad = [v for v, f in zip(difference.values, failed, strict=True) if f and v is not None]
    good = [v for v, f in zip(difference.values, failed, strict=True) if not f and v is not None]
    if not bad or not good:
        return []
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in bad + good):
        low, high = min(bad), max(bad)
        counts = [(f"≥ {low:g}", sum(v >= low for v in good)), (f"≤ {high:g}", sum(v <= high for v in good))]
        return [Shared(difference.trait, text, (len(bad), len(bad)), (n, len(good))) for text, n in counts]
    return [
        Shared(difference.trait, f"= {value}", (bad.count(value), len(bad)), (good.count(value), len(good)))
        for value in dict.fromkeys(map(_hashable, bad))
    ]  # fmt: skip


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else repr(value)


def nearest(runs: Sequence[Run], found: Sequence[Difference], failed: Sequence[bool]) -> dict[int, int]:
    """For each failed run the healthy one with the fewest other traits; of equals, the one with the nearest early loss."""
    healthy = [i for i, bad in enumerate(failed) if not bad]
    return {
        i: min(healthy, key=lambda j: (_distance(found, i, j), _early(runs[i], runs[j])))
        for i, bad in enumerate(failed) if bad and healthy
    }  # fmt: skip


def _distance(found: Sequence[Difference], i: int, j: int) -> int:
    return sum(repr(row.values[i]) != repr(row.values[j]) for row in found)


def _early(a: Run, b: Run) -> float:
    """Mean distance of the first common points of both losses, on a log scale; infinite without any."""
    if "loss" not in a or "loss" not in b or a["loss"].axes or b["loss"].axes:
        return float("inf")
    _, i, j = np.intersect1d(a["loss"].steps, b["loss"].steps, return_indices=True)
    x, y = a["loss"].values[i[:EARLY]], b["loss"].values[j[:EARLY]]
    usable = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    return float(np.mean(np.abs(np.log(x[usable] / y[usable])))) if usable.any() else float("inf")
