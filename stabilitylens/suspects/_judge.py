"""All suspects on all incidents of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stabilitylens.findings import SEVERITIES
from stabilitylens.incidents import Incident
from stabilitylens.suspects._case import Case
from stabilitylens.suspects._suspect import SUSPECTS, Opinion
from stabilitylens.suspects._tested import tested

if TYPE_CHECKING:
    from stabilitylens.report import Subject


def judge_case(case: Case) -> dict[str, Opinion]:
    """Every suspect's opinion on one incident, by name."""
    opinions = {member.name: tested(member.name, member.weigh(case), case.table) for member in SUSPECTS if not member.last}
    case = replace(case, others=opinions)
    return opinions | {member.name: member.weigh(case) for member in SUSPECTS if member.last}


def suspects_of(subject: Subject) -> list[dict[str, Any]]:
    """The suspects of one run, keys as in the JSON contract, most likely first; none without an incident to explain.

    Each suspect stands once, with the evidence of the incident that speaks most for it, of those that are the most
    severe. Incidents of the loss count, and warnings and errors of other series.
    """
    run, incidents = subject.run, subject.incidents
    if run is None:
        return []
    cases = {
        i: Case(run, incidents[i], context, subject.findings, table=_table(subject, incidents[i]))
        for i, context in enumerate(subject.contexts) if context is not None and _counts(incidents[i])
    }
    judged = {i: judge_case(case) for i, case in cases.items()}
    entries = [_entry(subject.name, member.name, judged, incidents) for member in SUSPECTS] if judged else []
    return sorted(entries, key=lambda entry: -float(entry["score"]))


def _table(subject: Subject, incident: Incident) -> Mapping[str, Any] | None:
    dump = subject.dump_of(incident)
    return None if dump is None else dump.table


def _counts(incident: Incident) -> bool:
    return incident.metric == "loss" or SEVERITIES[incident.severity] > SEVERITIES["info"]


def _entry(run: str, name: str, judged: dict[int, dict[str, Opinion]], incidents: Sequence[Incident]) -> dict[str, Any]:
    """The suspect's best incident, and those for which it comes first."""
    worst = max(SEVERITIES[incidents[i].severity] for i in judged)
    main = [i for i in judged if SEVERITIES[incidents[i].severity] == worst]
    best = max(main, key=lambda i: judged[i][name].score)
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
        "summary": SUSPECTS[name].summary,
    }
