"""All that is known around an incident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stabilitylens.dumps import Dump, of_incident
from stabilitylens.explanation._blind import cannot_show
from stabilitylens.explanation._coincidence import Coincidence
from stabilitylens.explanation._coincidences import coincidences
from stabilitylens.explanation._movements import Movement, movements
from stabilitylens.gravity import gravest_first
from stabilitylens.guard import Guard
from stabilitylens.incidents import Incident
from stabilitylens.run import Run

#: incidents that are looked into, the gravest first. *Heuristic*: nobody reads more.
MOST = 20
#: what needs no explanation, or has none in what came before it
PLAIN = ("resume", "plateau")


@dataclass(frozen=True)
class Context:
    """What happened around one incident.

    Attributes:
        moved: the series that left their own past before it or with it, the first first.
        asked: how many series had enough samples before it to be asked.
        coincident: events at or shortly before it.
        cannot_show: what the log does not say, a sentence each.
    """

    moved: tuple[Movement, ...] = ()
    asked: int = 0
    coincident: tuple[Coincidence, ...] = ()
    cannot_show: tuple[str, ...] = ()

    @property
    def before(self) -> tuple[Movement, ...]:
        """What moved before the incident and not with it."""
        return tuple(movement for movement in self.moved if movement.early)

    def of(self, *kinds: str) -> list[Coincidence]:
        """The coincidences of some kinds."""
        return [each for each in self.coincident if each.kind in kinds]

    def of_metric(self, *metrics: str) -> list[Movement]:
        """The movements of some metrics."""
        return [movement for movement in self.moved if movement.metric in metrics]

    @property
    def sentence(self) -> str:
        """Who moved first, in one sentence."""
        if self.before:
            return f"Moved first: {self.before[0]}."
        if self.moved:
            return f"None of {self.asked} other series moved before it; first with it: {self.moved[0]}."
        return f"None of {self.asked} other series moved before it or with it." if self.asked else ""

    def to_dict(self) -> dict[str, Any]:
        """The context as plain data, keys as in the JSON contract."""
        return {
            "moved": [movement.to_dict() for movement in self.moved],
            "asked": self.asked,
            "coincident": [each.to_dict() for each in self.coincident],
            "cannot_show": list(self.cannot_show),
        }


def contexts(
    run: Run, incidents: Sequence[Incident], dumps: Sequence[Dump] = (), guard: Guard | None = None
) -> list[Context | None]:
    """The context of each incident; None for those that need none, and beyond the 20 that matter most.

    Args:
        run: the record.
        incidents: what happened in it.
        dumps: what the black box kept of them.
        guard: keeps what failed by a fault of our own; such an incident has an empty context.
    """
    guard, candidates = guard or Guard(), [incident for incident in incidents if incident.kind not in PLAIN]
    looked = {id(incident) for incident in gravest_first(candidates)[:MOST]}
    return [_guarded(run, incident, incidents, dumps, guard) if id(incident) in looked else None for incident in incidents]


def _guarded(run: Run, incident: Incident, incidents: Sequence[Incident], dumps: Sequence[Dump], guard: Guard) -> Context:
    what = f"the surroundings of the {incident.kind.replace('_', ' ')} of {incident.metric} at step {incident.start_step}, which are missing"
    return guard.call(what, lambda: _context(run, incident, incidents, dumps), Context())


def _context(run: Run, incident: Incident, incidents: Sequence[Incident], dumps: Sequence[Dump]) -> Context:
    moved, asked = movements(run, incident)
    dump = of_incident(dumps, incident)
    kept = dump is not None and dump.folder is not None
    return Context(
        tuple(moved), asked, tuple(coincidences(run, incident, incidents)), tuple(cannot_show(run, incident, asked, kept))
    )
