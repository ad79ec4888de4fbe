"""All suspects on all incidents of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stabilitylens.findings import SEVERITIES
from stabilitylens.gravity import gravity, lost
from stabilitylens.guard import Guard
from stabilitylens.incidents import Incident
from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import SUSPECTS, Opinion, Suspect
from stabilitylens.suspects._tested import swapped, tested

if TYPE_CHECKING:
    from stabilitylens.report import Subject

#: an incident that lost less than this share of what the gravest did is not what the suspects are asked for first. *Heuristic*.
LESSER = 0.1


def judge_case(case: Case, guard: Guard | None = None) -> dict[str, Opinion]:
    """Every suspect's opinion on one incident, by name; one that fails by a fault of our own has none."""
    guard = guard or Guard()
    opinions = {}
    for member in (m for m in SUSPECTS if not m.last):
        opinion = swapped(member.name, _weighed(member, case, guard), case.replay)
        opinions[member.name] = tested(member.name, opinion, case.table)
    case = replace(case, others=opinions)
    return opinions | {member.name: _weighed(member, case, guard) for member in SUSPECTS if member.last}


def _weighed(member: Suspect, case: Case, guard: Guard) -> Opinion:
    what = f"the suspect {member.name}, which was not weighed for the {case.incident.kind.replace('_', ' ')} at step {case.incident.start_step}"
    failed = Opinion(0.0, (), ("it could not be weighed, by a fault of our own",), "None was worked out, by a fault of our own.")
    return guard.call(what, lambda: member.weigh(case), failed)


def suspects_of(subject: Subject, guard: Guard | None = None) -> list[dict[str, Any]]:
    """The suspects of one run, keys as in the JSON contract, most likely first; none without an incident to explain.

    Each suspect stands once, with the evidence of the incident that speaks most for it, of those that are the gravest.
    Incidents of the loss count, and warnings and errors of other series.
    """
    run, incidents = subject.run, subject.incidents
    if run is None:
        return []
    cases = {
        i: Case(run, incidents[i], context, subject.findings, table=dump.table if dump else None, replay=dump.replay if dump else None)
        for i, context in enumerate(subject.contexts) if context is not None and _counts(incidents[i])
        for dump in [subject.dump_of(incidents[i])]
    }
    judged = {i: judge_case(case, guard) for i, case in cases.items()}
    main = _main(judged, incidents)
    entries = [_entry(subject.name, member, main, judged) for member in SUSPECTS] if judged else []
    return sorted(entries, key=lambda entry: -float(entry["score"]))


def _main(judged: Iterable[int], incidents: Sequence[Incident]) -> list[int]:
    """The incidents that a report is about, the gravest first: those as severe as it that lost a tenth of what it did."""
    ranked = sorted(judged, key=lambda i: gravity(incidents[i]), reverse=True)
    worst = incidents[ranked[0]] if ranked else None
    return [i for i in ranked if worst and incidents[i].severity == worst.severity and lost(incidents[i]) >= LESSER * lost(worst)]


def _counts(incident: Incident) -> bool:
    return incident.metric == "loss" or SEVERITIES[incident.severity] > SEVERITIES["info"]


def _entry(run: str, member: Suspect, main: Sequence[int], judged: Mapping[int, Mapping[str, Opinion]]) -> dict[str, Any]:
    """The suspect's best incident, and those for which it comes first; that nothing is known is said of the gravest."""
    name = member.name
    best = main[0] if member.last else max(main, key=lambda i: judged[i][name].score)
    opinion = judged[best][name]
    return {
        "run": run,
        "name": name,
        "score": opinion.score,
        "excluded": opinion.excluded,
        "incident": best,
        "incidents": [i for i, opinions in judged.items() if max(opinions, key=lambda n: opinions[n].score) == name],
        "evidence_for": list(opinion.evidence_for),
        "evidence_against": list(opinion.evidence_against),
        "experiment": opinion.experiment,
        "summary": member.summary,
    }
