"""Report: what there is to say about some runs or a model, as plain data. ``reports/`` puts it on paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal, TextIO

from stabilitylens.anatomy import Anatomy
from stabilitylens.document import Document
from stabilitylens.dumps import Dump, of_incident
from stabilitylens.findings import SEVERITIES, Finding, Severity, Verdict
from stabilitylens.header import Coverage, Header
from stabilitylens.incidents import Incident
from stabilitylens.recipe import Recipe
from stabilitylens.reports._headline import headline
from stabilitylens.run import Run, Series

if TYPE_CHECKING:
    from stabilitylens.explanation import Context


@dataclass(frozen=True)
class Subject:
    """What a report is about: a run with its incidents, or, in an audit, a model that has no run.

    Attributes:
        name: the run's path or the model's name, as in the findings' ``run``.
        anatomy, recipe: as far as they are known.
        run: None in an audit.
        initial: in an audit, one forward and backward before training, if that was asked for.
        contexts: what happened around each incident; None for those that were not looked into.
        dumps: what the black box kept of incidents, what their replays found, and which cures were tried on them.
        failures: a sentence for each detector, rule or suspect that failed by a fault of our own.
    """

    name: str
    findings: tuple[Finding, ...]
    anatomy: Anatomy | None = None
    recipe: Recipe | None = None
    run: Run | None = None
    incidents: tuple[Incident, ...] = ()
    initial: Run | None = None
    contexts: tuple[Context | None, ...] = ()
    dumps: tuple[Dump, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def header(self) -> Header:
        """The run's header; an empty one in an audit."""
        return self.run.header if self.run is not None else Header()

    @property
    def loss(self) -> Series | None:
        """The scalar ``loss`` of the run, if it has one."""
        series = self.run["loss"] if self.run is not None and "loss" in self.run else None
        return series if series is not None and not series.axes else None

    def by_verdict(self, verdict: Verdict) -> list[Finding]:
        """The findings with one verdict, in the order of the judge."""
        return [finding for finding in self.findings if finding.verdict == verdict]

    def not_evaluated(self) -> dict[str, list[Finding]]:
        """The rules that were not evaluated, by what they lacked; what most of them lacked comes first."""
        groups: dict[str, list[Finding]] = {}
        for finding in self.by_verdict("not_evaluated"):
            groups.setdefault(finding.lacks or "", []).append(finding)
        return dict(sorted(groups.items(), key=lambda group: -len(group[1])))

    def fired_by_rule(self) -> list[list[Finding]]:
        """What fired, one list a rule, in the order of the judge."""
        groups: dict[str, list[Finding]] = {}
        for finding in self.by_verdict("fired"):
            groups.setdefault(finding.code, []).append(finding)
        return list(groups.values())

    def dump_of(self, incident: Incident) -> Dump | None:
        """What the black box kept of an incident; None where it kept nothing of it."""
        return of_incident(self.dumps, incident)

    @property
    def headline(self) -> str:
        """One sentence, without the name: the worst finding, the incidents, or that nothing fired."""
        return headline(self)


@dataclass(frozen=True)
class Report(Document):
    """Incidents and findings of one or more runs (a post-mortem), or of a model before training (an audit).

    ``str(report)`` is the text without colour. In a notebook a report shows its headline.

    Attributes:
        kind: which of the two it is.
        subjects: the runs, or the model.
        suspects: what may have caused the incidents, most likely first.
    """

    kind: Literal["postmortem", "audit"]
    subjects: tuple[Subject, ...]
    suspects: list[dict[str, Any]] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        """The runs it is about; none in an audit."""
        return [subject.run for subject in self.subjects if subject.run is not None]

    @property
    def findings(self) -> list[Finding]:
        """Every rule's verdict on every subject."""
        return [finding for subject in self.subjects for finding in subject.findings]

    @property
    def incidents(self) -> list[Incident]:
        """The incidents of all runs, run by run."""
        return [incident for subject in self.subjects for incident in subject.incidents]

    @property
    def anatomy(self) -> Anatomy | None:
        """Of the first subject whose anatomy is known."""
        return next((subject.anatomy for subject in self.subjects if subject.anatomy is not None), None)

    @property
    def coverage(self) -> Coverage:
        """Of the first run; that of an audit is empty."""
        return self.subjects[0].header.coverage

    @property
    def verdict(self) -> str:
        """The headline in one sentence; each run by its name where there are several."""
        if len(self.subjects) == 1:
            return self.subjects[0].headline
        return "; ".join(f"{subject.name}: {subject.headline}" for subject in self.subjects)

    def at_or_above(self, severity: Severity) -> bool:
        """Whether a finding fired, or an incident happened, that is at least this severe."""
        fired = [finding.severity or "info" for finding in self.findings if finding.verdict == "fired"]
        happened = [incident.severity for incident in self.incidents]
        return any(SEVERITIES[found] >= SEVERITIES[severity] for found in fired + happened)

    def write(self, stream: TextIO, form: str) -> None:
        """Write all of it in the form of one of the reporters."""
        from stabilitylens.reports import REPORTERS

        REPORTERS[form](self, stream)

    def _repr_html_(self) -> str:
        return f"<p><strong>{self.kind}</strong>: {escape(self.verdict)}</p>"
