"""What went wrong in some runs, or is about to: incidents and every rule's verdict."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stabilitylens.dumps import dumps_of
from stabilitylens.errors import BadInput
from stabilitylens.explanation import contexts
from stabilitylens.findings import Finding
from stabilitylens.guard import Guard
from stabilitylens.incidents import DETECTORS, Incident, detect
from stabilitylens.readers import read_all
from stabilitylens.report import Report, Subject
from stabilitylens.rules import Evidence, Rule, judge
from stabilitylens.rules._rule import verdicts
from stabilitylens.run import Run
from stabilitylens.suspects import suspects_of


def postmortem(*runs: str | Path | Run, loss: str | None = None) -> Report:
    """Explain one run, or several side by side.

    A detector, a rule or a suspect that fails by a fault of our own costs only itself; the report says so.

    Args:
        runs: folders that ``attach`` wrote to, logs of other tools, or runs that are loaded already.
        loss: which series is the loss, as the log names it; by default it is chosen by name and behaviour.

    Raises:
        stabilitylens.errors.BadInput: no run was named, or one cannot be read; the message is one
            sentence that says what was found and what to do.
    """
    if not runs:
        raise BadInput("postmortem was given no run; name the folder of one, as in postmortem('runs/gpt')")
    found = [one for run in runs for one in ([run] if isinstance(run, Run) else read_all(Path(run), loss))]
    explained = [_explained(run) for run in found]
    suspects = [suspect for _, entries in explained for suspect in entries]
    return Report("postmortem", tuple(subject for subject, _ in explained), sorted(suspects, key=lambda suspect: -suspect["score"]))


def _explained(run: Run) -> tuple[Subject, list[dict[str, Any]]]:
    """A run's incidents, findings and contexts, and the suspects of them."""
    guard, anatomy, recipe = Guard(), run.header.anatomy, run.header.recipe
    findings = tuple(_judged(Evidence(run.path, anatomy=anatomy, recipe=recipe, run=run), guard))
    incidents = tuple(_detected(run, guard))
    dumps = guard.call("what reads the incidents that the black box kept", lambda: dumps_of(run), ())
    around = tuple(contexts(run, incidents, dumps, guard))
    subject = Subject(run.path, findings, anatomy, recipe, run, incidents, contexts=around, dumps=tuple(dumps))
    entries = suspects_of(subject, guard)
    return replace(subject, failures=tuple(dict.fromkeys(guard.said))), entries


def _detected(run: Run, guard: Guard) -> list[Incident]:
    """All incidents; where a detector fails, those of the others."""
    found: list[Incident] | None = Guard().call("the detectors", lambda: detect(run), None)
    if found is not None:
        return found
    each: list[list[Incident]] = [guard.call(f"the detector {m.name}, whose incidents are missing", partial(m.find, run), []) for m in DETECTORS]
    return sorted((incident for some in each for incident in some), key=lambda incident: (incident.start_step, incident.kind))


def _judged(evidence: Evidence, guard: Guard) -> list[Finding]:
    """Every rule's verdict; a rule that fails was not evaluated."""

    def ask(rule: Rule, evidence: Evidence) -> list[Finding]:
        failed = Finding(evidence.name, rule.code, rule.name, "not_evaluated", lacks="the rule failed by a fault of our own")
        return guard.call(f"the rule {rule.code} {rule.name}, which was not evaluated", lambda: verdicts(rule, evidence), [failed])

    return judge(evidence, ask=ask)
