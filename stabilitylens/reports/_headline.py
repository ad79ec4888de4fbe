"""The verdict on a run or a model in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stabilitylens.findings import Finding
from stabilitylens.incidents import Incident

if TYPE_CHECKING:
    from stabilitylens.report import Subject


def headline(subject: Subject) -> str:
    """What fired first of the most severe, and what else there is; or what is clear."""
    fired, incidents = subject.fired_by_rule(), _count(subject.incidents)
    if not fired:
        return f"{incidents}, but no rule fired: {_tally(subject)}" if incidents else f"nothing fired: {_tally(subject)}"
    others = f"{_plural(len(fired) - 1, 'other rule')} fired" if len(fired) > 1 else ""
    return "; ".join(part for part in (_first(subject, _leading(fired)), others, incidents) if part)


def _first(subject: Subject, leading: Finding) -> str:
    message = leading.message.rstrip(".")
    if leading.severity == "info":
        return f"no warning and no error: {_tally(subject)}; noted that {message}"
    calm = subject.loss is not None and not any(incident.metric == "loss" for incident in subject.incidents)
    return f"{message}, while the loss looked unremarkable" if calm and " loss" not in message else message


def _leading(fired: list[list[Finding]]) -> Finding:
    """The first of the most severe; what was measured at some step comes before what the architecture says."""
    first = [group[0] for group in fired]
    worst = [finding for finding in first if finding.severity == first[0].severity]
    return next((finding for finding in worst if finding.where.steps is not None), worst[0])


def _tally(subject: Subject) -> str:
    clear, missing = len(subject.by_verdict("clear")), len(subject.by_verdict("not_evaluated"))
    if missing and not clear:
        return f"none of {_plural(missing, 'rule')} had what it needs"
    return f"{_plural(clear, 'rule')} clear, {missing} not evaluated"


def _count(incidents: Sequence[Incident]) -> str:
    """E.g. ``1 spike of loss at step 1003, 2 outliers of loss``; empty for none."""
    kinds = Counter((incident.kind.replace("_", " "), incident.metric) for incident in incidents)
    first = {(i.kind.replace("_", " "), i.metric): i.peak_step for i in reversed(incidents)}
    return ", ".join(
        f"{_plural(n, kind)} of {metric}" + (f" at step {first[kind, metric]}" if n == 1 else "")
        for (kind, metric), n in kinds.items()
    )


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
