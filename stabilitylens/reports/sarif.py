"""The report as SARIF 2.1.0, which code scanning reads (https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote

from stabilitylens import __version__
from stabilitylens.reports._reporter import reporter
from stabilitylens.reports.json import plain

if TYPE_CHECKING:
    from stabilitylens.findings import Finding
    from stabilitylens.report import Report, Subject
    from stabilitylens.rules import Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
#: levels of SARIF by severity
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


@reporter("sarif")
def write(report: Report, stream: TextIO) -> None:
    """One run of the tool: what fired is a result; what is clear or was not evaluated is in the run's properties.

    A viewer would show a passed check as an alert, so those are no results.
    """
    json.dump(plain(_log(report)), stream, indent=2, allow_nan=False)
    stream.write("\n")


def _log(report: Report) -> dict[str, Any]:
    from stabilitylens.rules import RULES

    judged = {finding.code for finding in report.findings}
    rules = [rule for rule in RULES if rule.code in judged]
    index = {rule.code: i for i, rule in enumerate(rules)}
    fired = [(s, f) for s in report.subjects for f in s.by_verdict("fired")]
    driver = {"name": "stabilitylens", "version": __version__, "rules": [_rule(rule) for rule in rules]}
    run = {
        "tool": {"driver": driver},
        "results": [_result(subject, finding, index) for subject, finding in fired],
        "invocations": [{
            "executionSuccessful": True,
            "toolExecutionNotifications": [
                {"level": "error", "message": {"text": f"{s.name}: {failure}"}} for s in report.subjects for failure in s.failures
            ],
        }],
        "properties": {"headline": report.verdict, "subjects": [_verdicts(subject) for subject in report.subjects]},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    described = {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": " ".join(rule.section("Why it matters").split()) or rule.summary},
        "help": {"text": rule.page, "markdown": rule.page},
        "properties": {"tags": ["training-stability", "static" if rule.static else "dynamic"]},
    }
    return described | ({"helpUri": rule.sources[0]} if rule.sources else {})


def _result(subject: Subject, finding: Finding, index: dict[str, int]) -> dict[str, Any]:
    where = finding.where
    place = ".".join(str(p) for p in (subject.name, where.layer_name or where.layer) if p is not None)
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": place, "kind": "module"}]}
    file = _file(subject.name)
    if file is not None:
        region = {"startLine": 1}
        location["physicalLocation"] = {"artifactLocation": {"uri": file}, "region": region}
    return {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "kind": "fail",
        "level": LEVELS[finding.severity or "info"],
        "message": {"text": f"{finding.message}. {' '.join(finding.remedy.split())}".strip()},
        "locations": [location],
        "partialFingerprints": {"ruleAndPlace/v1": f"{finding.code}:{place}"},
        "properties": {
            "confidence": finding.confidence, "observed": finding.observed, "threshold": finding.threshold,
            "where": str(where), "sources": finding.sources,
        },
    }


def _file(name: str) -> str | None:
    """The file that a subject's name stands for, relative to the working folder where it lies in it."""
    path = Path(name)
    if not path.exists():
        path = Path(_module_file(name) or "")
    elif path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if not path.is_file():
        return None
    absolute = path.resolve()
    inside = absolute.is_relative_to(Path.cwd())
    return quote(absolute.relative_to(Path.cwd()).as_posix()) if inside else absolute.as_uri()


def _module_file(name: str) -> str | None:
    """Where the module of ``package.module:factory`` is."""
    module, colon, _ = name.partition(":")
    try:
        found = importlib.util.find_spec(module) if colon else None
    except (ImportError, ValueError, AttributeError):
        return None
    return found.origin if found is not None else None


def _verdicts(subject: Subject) -> dict[str, Any]:
    return {
        "name": subject.name,
        "fired": sorted({f.code for f in subject.by_verdict("fired")}),
        "clear": [f.code for f in subject.by_verdict("clear")],
        "not_evaluated": [{"code": f.code, "lacks": f.lacks} for f in subject.by_verdict("not_evaluated")],
        "dumps": [dump.to_dict() for dump in subject.dumps],
    }
