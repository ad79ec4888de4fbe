"""What headers say of runs: recipe, model, versions and sampling, as one flat table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stabilitylens.run import Run

#: fields of an anatomy that list its parts: their counts are compared, not they
_LISTS = ("layers", "sub_layers", "attention_calls", "uncertain", "notes")


@dataclass(frozen=True)
class Difference:
    """A trait that is not the same in all runs; ``values`` in the order of the runs, None where it is not known."""

    trait: str
    values: tuple[Any, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, keys as in the JSON contract."""
        return {"trait": self.trait, "values": list(self.values)}


def traits(run: Run) -> dict[str, Any]:
    """The traits of one run by dotted name, as ``recipe.lr`` and ``anatomy.qk_norm``; what is not known is left out."""
    header = run.header
    found: dict[str, Any] = {}
    if header.recipe is not None:
        found |= {f"recipe.{key}": value for key, value in header.recipe.to_dict().items() if key != "notes"}
    if header.anatomy is not None:
        found |= {f"anatomy.{key}": value for key, value in header.anatomy.to_dict().items() if key not in _LISTS}
    found |= {f"versions.{key}": value for key, value in header.versions.items()}
    found |= {f"sampling.{key}": value for key, value in header.sampling.items()}
    return {key: value for key, value in found.items() if value is not None}


def differences(runs: Sequence[Run]) -> list[Difference]:
    """Traits whose values differ, and of which two runs at least know one; a trait that one run lacks is None there."""
    tables = [traits(run) for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [Difference(name, tuple(table.get(name) for table in tables)) for name in names]
    return [row for row in rows if len({repr(value) for value in row.values if value is not None}) > 1]
