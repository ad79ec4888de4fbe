"""What the black box of a run has left on disk: dumped incidents, and the cures that were tried on them. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stabilitylens.run import Run

#: where a run keeps its incidents, inside its folder
INCIDENTS = Path("stabilitylens") / "incidents"
FORMAT, VERSION = "stabilitylens counterfactuals", 1
#: the event that tells of a dump
EVENT = "incident_dumped"
_OTHERS = ("does not avert", "not applicable", "failed")
_STEP, _ENDING = "step_", ".counterfactuals.json"


@dataclass(frozen=True)
class Dump:
    """One dumped incident of a run.

    Attributes:
        step: the incident's. text: what the record says of it.
        folder: where it lies; None where it is no longer there.
        table: what the counterfactuals came to, as :meth:`Table.to_dict` has it with None for what is not finite; None where
            none were tried.
    """

    step: int
    text: str
    folder: str | None
    table: dict[str, Any] | None = None

    @property
    def calls(self) -> list[str]:
        """What to call next."""
        if self.folder is None:
            return []
        return [f"stabilitylens.{name}({self.folder!r}, model, optimizer, step_fn)" for name in ("replay", "counterfactuals")]

    @property
    def link(self) -> str | None:
        """The folder as an address; None where it is no longer there."""
        return None if self.folder is None else Path(self.folder).absolute().as_uri()

    @property
    def cure(self) -> str:
        """What averts it, in a sentence; empty where nothing was tried."""
        return "" if self.table is None else cure(self.table)

    @property
    def tested(self) -> list[str]:
        """The counterfactuals by what they came to, in a few words."""
        averting = [in_words(row) for row in self._rows if row["verdict"] == "averts"]
        others = {verdict: [row["name"] for row in self._rows if row["verdict"] == verdict] for verdict in _OTHERS}
        return averting + [f"{verdict}: {', '.join(names)}" for verdict, names in others.items() if names]

    @property
    def _rows(self) -> list[dict[str, Any]]:
        return [] if self.table is None else list(self.table["rows"])

    def to_dict(self) -> dict[str, Any]:
        """As the JSON contract has it."""
        keys = ("name", "suspect", "weight", "verdict", "why", "loss_after")
        return {
            "step": self.step, "text": self.text, "folder": self.folder, "calls": self.calls, "cure": self.cure or None,
            "tested": [{key: row[key] for key in keys} for row in self._rows],
        }  # fmt: skip


def path_of(folder: Path) -> Path:
    """Where the table of an incident's folder is kept: beside it, for what lies inside is sealed by checksums."""
    return folder.with_name(folder.name + _ENDING)


def dumps_of(run: Run) -> tuple[Dump, ...]:
    """The dumped incidents of a run, by step: those on disk, and those that its record tells of."""
    path = Path(run.path)
    places = (path / INCIDENTS, path / INCIDENTS.name, path.parent / INCIDENTS.name)  # of its folder, our own folder in it, a file there
    found = {folder: _step(folder) for folder in next(filter(None, map(_folders, places)), [])}
    told = {event.step: event.text for event in run.events if event.kind == EVENT}
    on_disk = [Dump(step, told.get(step, ""), str(folder), _table(folder)) for folder, step in found.items() if step is not None]
    gone = [Dump(step, text, None) for step, text in told.items() if step not in found.values()]
    return tuple(sorted([*on_disk, *gone], key=lambda dump: (dump.step, dump.folder or "")))


def _folders(incidents: Path) -> list[Path]:
    try:
        return sorted(p for p in incidents.iterdir() if p.name.startswith(_STEP) and p.is_dir())
    except (OSError, ValueError):
        return []


def _step(folder: Path) -> int | None:
    number = folder.name.removeprefix(_STEP).partition(".")[0]
    return int(number) if number.isdecimal() else None


def _table(folder: Path) -> dict[str, Any] | None:
    """The table of an incident; None where there is none that can be read."""
    try:
        table = json.loads(path_of(folder).read_text(encoding="utf-8"))
        whole = isinstance(table, dict) and table.get("format") == FORMAT and table.get("version") == VERSION
        return table if whole and all(_is_row(row) for row in [table["baseline"], *table["rows"]]) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_row(row: Any) -> bool:
    words = all(isinstance(row[key], str) for key in ("name", "verdict", "why"))
    numbers = isinstance(row["weight"], (int, float)) and isinstance(row["loss_after"], (int, float, type(None)))
    return words and numbers and isinstance(row["suspect"], (str, type(None)))


def in_words(row: Mapping[str, Any]) -> str:
    """A counterfactual's verdict: ``skip_batch averts it (loss after 2.31)``."""
    if row["verdict"] not in ("averts", "does not avert"):
        return f"{row['name']}: {row['verdict']}"
    after = f" (loss after {row['loss_after']:.3g})" if row["verdict"] == "averts" and _known(row["loss_after"]) else ""
    return f"{row['name']} {row['verdict']} it{after}"


def cure(table: Mapping[str, Any]) -> str:
    """What averts the incident at the lowest loss, in a sentence."""
    if not table["shown"]:
        return "the run without any change does not show the incident again, so nothing was tried"
    averting: Sequence[Mapping[str, Any]] = [row for row in table["rows"] if row["verdict"] == "averts"]
    if not averting:
        return "nothing that was tried averts it"
    best = min(averting, key=lambda row: row["loss_after"] if _known(row["loss_after"]) else float("inf"))
    tried = sum(row["verdict"] in ("averts", "does not avert") for row in table["rows"])
    return f"{len(averting)} of {tried} that were tried avert it; at the lowest loss after: {in_words(best)}"


def _known(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == value
