"""The report in a line a finding, for the log of a continuous integration."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TextIO

from stabilitylens.gravity import gravest_first
from stabilitylens.reports._reporter import reporter

if TYPE_CHECKING:
    from stabilitylens.report import Report, Subject


@reporter("line")
def write(report: Report, stream: TextIO) -> None:
    """``NAME: SEVERITY CODE RULE (WHERE): MESSAGE``, then each incident, then what the black box kept, then what failed by a fault of our own, then how many rules had which verdict."""
    for subject in report.subjects:
        for finding in subject.by_verdict("fired"):
            where = "" if str(finding.where) == "the whole model" else f" ({finding.where})"
            stream.write(f"{subject.name}: {finding.severity} {finding.code} {finding.name}{where}: {_flat(finding.message)}\n")
        for incident in gravest_first(subject.incidents):
            kind = incident.kind.replace("_", " ")
            stream.write(f"{subject.name}: {incident.severity} {kind} (step {incident.start_step}): {_flat(incident.explanation)}\n")
        for dump in subject.dumps:
            stream.write(f"{subject.name}: kept step {dump.step}: {_flat(dump.summary)}\n")
        for failure in subject.failures:
            stream.write(f"{subject.name}: {_flat(failure)}\n")
        stream.write(f"{subject.name}: {_tally(subject)}\n")


def _flat(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _tally(subject: Subject) -> str:
    found = Counter(finding.severity or "info" for finding in subject.by_verdict("fired"))
    fired = ", ".join(f"{found[s]} {s}" for s in ("error", "warning", "info") if found[s]) or "nothing fired"
    return f"{fired}; {len(subject.by_verdict('clear'))} clear, {len(subject.by_verdict('not_evaluated'))} not evaluated"
