"""The verdict on a run or a model in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stabilitylens.findings import SEVERITIES, Finding
from stabilitylens.gravity import gravest_first
from stabilitylens.incidents import Incident
from stabilitylens.run import Run, Series

if TYPE_CHECKING:
    from stabilitylens.report import Subject

#: kinds of incidents that a headline counts; the table has them all
KINDS = 3
#: kinds that are of the whole record, and so at no step
THROUGHOUT = frozenset(("plateau",))
#: series that are named where none of them is a loss
NAMED = 5


def headline(subject: Subject) -> str:
    """The worst that was found, be it a finding or an incident, and how much else; or what is clear."""
    finding, incident = _worst_finding(subject), _worst_incident(subject.incidents)
    if subject.run is not None and subject.loss is None and finding is None and not subject.incidents:
        if not any(series.axes for series in subject.run.values()):
            return _without_loss(subject.run)
    if max(_rank(finding), _rank(incident)) <= SEVERITIES["info"]:
        parts = [*_calm(subject, finding), _count(subject.incidents)]
    elif incident is not None and _rank(incident) > _rank(finding):
        rest = [other for other in subject.incidents if other is not incident]
        parts = [incident.explanation.rstrip("."), _rules(subject), _count(rest)]
    else:
        assert finding is not None
        parts = [_with_loss(finding, subject), _others(subject), _count(subject.incidents)]
    return "; ".join(part for part in parts if part)


def _without_loss(run: Run) -> str:
    names = list(run)[:NAMED]
    listed = ", ".join(names) + (", …" if len(run) > NAMED else "")
    return f"no loss was found among {len(run)} series ({listed}); name one of them with --loss, or give another log"


def _calm(subject: Subject, finding: Finding | None) -> list[str]:
    if finding is None and not subject.incidents:
        return [f"{'nothing fired' if subject.by_verdict('clear') else 'not evaluated'}: {_tally(subject)}"]
    return [f"no warning and no error: {_tally(subject)}", f"noted that {finding.message.rstrip('.')}" if finding else ""]


def _with_loss(finding: Finding, subject: Subject) -> str:
    message = finding.message.rstrip(".")
    calm = _fell(subject.loss) and not any(incident.metric == "loss" for incident in subject.incidents)
    return f"{message}, while the loss looked unremarkable" if calm and " loss" not in message else message


def _fell(loss: Series | None) -> bool:
    """Whether a loss ends below its beginning, as that of a training that works does."""
    if loss is None or not np.isfinite(loss.values).all():
        return False
    tenth = max(1, len(loss) // 10)
    return bool(np.median(loss.values[-tenth:]) < np.median(loss.values[:tenth]))


def _worst_finding(subject: Subject) -> Finding | None:
    """The first of the most severe; what was measured at some step comes before what the architecture says."""
    first = [group[0] for group in subject.fired_by_rule()]
    return max(first, key=lambda finding: (_rank(finding), finding.where.steps is not None), default=None)


def _worst_incident(incidents: Sequence[Incident]) -> Incident | None:
    return next(iter(gravest_first(incidents)), None)


def _rank(found: Finding | Incident | None) -> int:
    return -1 if found is None else SEVERITIES[found.severity or "info"]


def _rules(subject: Subject) -> str:
    fired = len(subject.fired_by_rule())
    return f"{_plural(fired, 'rule')} fired" if fired else f"no rule fired: {_tally(subject)}"


def _others(subject: Subject) -> str:
    others = len(subject.fired_by_rule()) - 1
    return f"{_plural(others, 'other rule')} fired" if others else ""


def _tally(subject: Subject) -> str:
    clear, missing = len(subject.by_verdict("clear")), len(subject.by_verdict("not_evaluated"))
    if missing and not clear:
        return f"none of {_plural(missing, 'rule')} had what it needs"
    return f"{_plural(clear, 'rule')} clear, {missing} not evaluated"


def _count(incidents: Sequence[Incident]) -> str:
    """E.g. ``spike of loss at step 1003, outlier of loss (2 times)``, the gravest first; empty for none."""
    incidents = gravest_first(incidents)
    kinds = Counter((incident.kind.replace("_", " "), incident.metric) for incident in incidents)
    first = {(i.kind.replace("_", " "), i.metric): i.start_step for i in reversed(incidents)}
    parts = [
        f"{kind} of {metric} " + (f"({n} times)" if n > 1 else "throughout" if kind in THROUGHOUT else f"at step {first[kind, metric]}")
        for (kind, metric), n in list(kinds.items())[:KINDS]
    ]
    return ", ".join(parts + ["and other incidents"] * (len(kinds) > KINDS))


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
