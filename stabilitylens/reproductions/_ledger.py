"""The ledger: what was measured of each claim, when, where and with what, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stabilitylens.errors import BadInput
from stabilitylens.reproductions._claim import Claim, Expect, Mode, Numbers, Picture
from stabilitylens.reproductions._origin import Origin
from stabilitylens.reproductions._verdict import Outcome, Verdict

SCHEMA = 2


@dataclass(frozen=True)
class Entry:
    """One claim's result.

    Attributes:
        cells: what was measured, one value a seed, by cell and number.
        seconds: processor time of all its measurements; ``origin``: when, where and with what they were made.
        reason: why it could not be run, where it could not.
    """

    name: str
    page: str
    paper: str
    says: str
    bigger: str
    verdict: Verdict
    outcomes: tuple[Outcome, ...] = ()
    cells: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""
    origin: Origin = Origin()
    picture: Picture | None = None

    @property
    def summary(self) -> str:
        """The first line of the claim's page."""
        return self.page.splitlines()[0]

    @classmethod
    def of(cls, claim: Claim, verdict: Verdict, **rest: Any) -> Entry:
        """The entry of a claim."""
        return cls(claim.name, claim.page, claim.paper, claim.says, claim.bigger, verdict, picture=claim.picture, **rest)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Entry:
        """From what ``to_dict`` of the ledger made of it."""
        own = _numbers(data)
        found = tuple(Outcome(Expect(**o["expect"]), tuple(o["values"])) for o in own.pop("outcomes"))
        picture = own.pop("picture")
        origin = Origin.from_dict(own.pop("origin"))
        return cls(**own, outcomes=found, picture=Picture(**picture) if picture else None, origin=origin)


@dataclass(frozen=True)
class Ledger:
    """Entries that were measured by the same kind of plan; ``scale`` is the width of widened models."""

    mode: Mode
    entries: tuple[Entry, ...]
    scale: int | None = None

    @property
    def origin(self) -> Origin:
        """When, where and with what all of it was measured."""
        return Origin.over(entry.origin for entry in self.entries)

    def over(self, older: Ledger) -> Ledger:
        """This one with the entries of an older one that it has not, by name."""
        entries = {entry.name: entry for entry in (*older.entries, *self.entries)}
        return replace(self, entries=tuple(entries[name] for name in sorted(entries)))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what is not finite is a string (``"nan"``, ``"inf"``), for JSON has no such numbers."""
        plain: dict[str, Any] = _strings({"schema": SCHEMA} | asdict(self))
        return plain

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Read ``ledger.json``.

        Raises:
            BadInput: the file is no ledger of this schema.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.pop("schema") != SCHEMA:
                raise BadInput(f"{path} has another schema than {SCHEMA}; run the claims again")
            entries = tuple(Entry.from_dict(entry) for entry in data.pop("entries"))
            return cls(entries=entries, **data)
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path} is no ledger of reproductions; run `stabilitylens reproduce all` to make one") from error


def _strings(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _strings(each) for key, each in value.items()}
    return [_strings(each) for each in value] if isinstance(value, list | tuple) else value


def _numbers(value: Any) -> Any:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items()}
    return [_numbers(each) for each in value] if isinstance(value, list) else value


def merged(cells: Mapping[str, list[Numbers]]) -> dict[str, dict[str, list[float]]]:
    """Seeds within numbers within cells."""
    return {name: {key: [seed[key] for seed in seeds] for key in seeds[0]} for name, seeds in cells.items()}
