"""What the black box of a run has left on disk: dumped incidents, their replays, and the cures that were tried. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stabilitylens.beside import REPLAY, TABLE, Beside
from stabilitylens.cures import cure, in_words, known

if TYPE_CHECKING:
    from stabilitylens.incidents import Incident
    from stabilitylens.run import Run

#: where a run keeps its incidents, inside its folder
INCIDENTS = Path("stabilitylens") / "incidents"
#: the event that tells of a dump
EVENT = "incident_dumped"
#: a dump this many steps from the incident that the curve shows is of that incident. *Heuristic*: a detector that sees both
#: sides of an incident may put its first step elsewhere than an alarm that knows only the past.
NEAR = 8
_OTHERS = ("does not avert", "not applicable", "failed")
_STEP = "step_"


@dataclass(frozen=True)
class Stage:
    """The incident, its replay, or its cure.

    Attributes:
        name: ``incident``, ``replay`` or ``cure``.
        said: what there is to say of it, a sentence each.
        path: where it lies; None where it is not there.
        call: what to call for it; None where it has been done, or can't be.
    """

    name: str
    said: tuple[str, ...]
    path: str | None = None
    call: str | None = None

    @property
    def link(self) -> str | None:
        """The path as an address."""
        return None if self.path is None else Path(self.path).absolute().as_uri()


@dataclass(frozen=True)
class Dump:
    """One dumped incident of a run.

    Attributes:
        step: the incident's. text: what the record says of it.
        folder: where it lies; None where it is no longer there.
        table: what the counterfactuals came to, as :meth:`Table.to_dict` has it with None for what is not finite; None where
            none were tried.
        replay: what its replay found, as :meth:`Replay.to_dict` has it; None where it was not replayed.
        lacks: why it can't be run again; empty where it can.
    """

    step: int
    text: str
    folder: str | None
    table: dict[str, Any] | None = None
    replay: dict[str, Any] | None = None
    lacks: str = ""

    @property
    def stages(self) -> tuple[Stage, Stage, Stage]:
        """Incident, replay and cure: what each says and where it lies, or what to call for it."""
        gone = () if self.folder is not None else ("its folder is no longer there",)
        incident = Stage("incident", tuple(filter(None, (self.text, *gone))), self.folder)
        cures = (self.cure, *self.tested) if self.table is not None else None
        return incident, self._stage("replay", REPLAY, "replay", self.replayed), self._stage("cure", TABLE, "counterfactuals", cures)

    def _stage(self, name: str, kind: Beside, function: str, said: tuple[str, ...] | None) -> Stage:
        if said is not None and self.folder is not None:
            return Stage(name, said, str(kind.path(Path(self.folder))))
        if self.folder is None or self.lacks:
            return Stage(name, ("not possible",) if self.folder is None else (f"not possible: {self.lacks}",))
        return Stage(name, ("not done yet",), call=f"stabilitylens.{function}({self.folder!r}, model, optimizer, step_fn)")

    @property
    def calls(self) -> list[str]:
        """What to call next: for the replay and for the cure where they have not been done and can be."""
        return [stage.call for stage in self.stages if stage.call is not None]

    @property
    def replayed(self) -> tuple[str, ...] | None:
        """What the replay found, a sentence each; None where there was none."""
        return None if self.replay is None else tuple(line for line in self.replay["text"].splitlines() if line and line[0] != " ")

    @property
    def cure(self) -> str:
        """What averts it, in a sentence; empty where nothing was tried."""
        return "" if self.table is None else cure(self.table)

    @property
    def tested(self) -> list[str]:
        """The counterfactuals by what they came to, in a few words; first the run without any change, to compare with."""
        if not self.rows:
            return []
        averting = [in_words(row) for row in self.rows if row["verdict"] == "averts"]
        others = {verdict: [row["name"] for row in self.rows if row["verdict"] == verdict] for verdict in _OTHERS}
        return [self._unchanged, *averting, *(f"{verdict}: {', '.join(names)}" for verdict, names in others.items() if names)]

    @property
    def _unchanged(self) -> str:
        row = self.table["baseline"] if self.table is not None else {}
        after = f" (loss after {row['loss_after']:.3g})" if known(row["loss_after"]) else ""
        return f"without any change: {row['why'] or 'as it was'}{after}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The counterfactuals; none where nothing was tried."""
        return [] if self.table is None else list(self.table["rows"])

    @property
    def summary(self) -> str:
        """Where it lies, and how far one has come, in a line."""
        incident, *others = self.stages
        parts = [incident.path or "its folder is no longer there", *(f"{s.name}: {s.call or s.said[0]}" for s in others)]
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """As the JSON contract has it."""
        keys = ("name", "suspect", "weight", "verdict", "why", "loss_after")
        _, replay, cure = self.stages
        found = None if self.replay is None else {"path": replay.path, "exact": self.replay["exact"], "said": list(replay.said)}
        return {
            "step": self.step, "text": self.text, "folder": self.folder, "lacks": self.lacks or None, "calls": self.calls, "replay": found,
            "table": cure.path, "cure": self.cure or None,
            "unchanged_loss_after": None if self.table is None else self.table["baseline"]["loss_after"],
            "tested": [{key: row[key] for key in keys} for row in self.rows],
        }  # fmt: skip


def dumps_of(run: Run) -> tuple[Dump, ...]:
    """The dumped incidents of a run, by step: those on disk, and those that its record tells of."""
    path = Path(run.path)
    places = (path / INCIDENTS, path / INCIDENTS.name, path.parent / INCIDENTS.name)  # of its folder, our own folder in it, a file there
    found = {folder: _step(folder) for folder in next(filter(None, map(_folders, places)), [])}
    told = {event.step: event.text for event in run.events if event.kind == EVENT}
    on_disk = [_dump(folder, step, told.get(step, "")) for folder, step in found.items() if step is not None]
    gone = [Dump(step, text, None) for step, text in told.items() if step not in found.values()]
    return tuple(sorted([*on_disk, *gone], key=lambda dump: (dump.step, dump.folder or "")))


def _dump(folder: Path, step: int, text: str) -> Dump:
    return Dump(step, text, str(folder), TABLE.read(folder), REPLAY.read(folder), _lacks(folder))


def of_incident(dumps: Sequence[Dump], incident: Incident) -> Dump | None:
    """The dump of an incident: one that has been tested before one that is there, then the nearest; None where none is near it."""

    def away(dump: Dump) -> int:
        return max(incident.start_step - dump.step, dump.step - incident.end_step, 0)

    def rank(dump: Dump) -> tuple[bool, bool, int, int]:
        return dump.table is None, dump.folder is None, away(dump), abs(dump.step - incident.start_step)

    return min((dump for dump in dumps if away(dump) <= NEAR), key=rank, default=None)


def _folders(incidents: Path) -> list[Path]:
    try:
        return sorted(p for p in incidents.iterdir() if p.name.startswith(_STEP) and p.is_dir())
    except (OSError, ValueError):
        return []


def _step(folder: Path) -> int | None:
    number = folder.name.removeprefix(_STEP).partition(".")[0]
    return int(number) if number.isdecimal() else None


def _lacks(folder: Path) -> str:
    """Why an incident can't be run again, by its manifest, whose checksums are checked by who reads the rest."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["snapshot_step"] is not None:
            return ""
        why = manifest["left_out"].get("snapshot", "attach with blackbox=stabilitylens.BlackBox(snapshot_every=…) to have one")
        return f"no snapshot was kept before it: {why}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "its folder holds no manifest.json that can be read"
