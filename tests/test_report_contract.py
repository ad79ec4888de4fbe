"""docs/json.md describes what is written: no key more, no key less."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from stabilitylens._postmortem import postmortem
from stabilitylens.findings import Finding, Severity, Verdict
from stabilitylens.incidents import Incident
from stabilitylens.incidents._incident import Kind, Recovery
from stabilitylens.report import Report, Subject
from tests import run_builders as runs

PAGE = Path(__file__).parent.parent / "docs" / "json.md"
SPIKE = Incident("spike", "loss", 100, 104, 100, 104, 101, 101, 2, 31.0, "fast", 5, "warning", 0.9, "loss rose")


def documented(heading: str) -> set[str]:
    """The keys in the first column of the table under a heading."""
    section = re.search(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert section is not None
    cells = re.findall(r"^\| (`[^|]*) \|", section[1], re.M)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def written(report: Report) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(report.to_json(), parse_constant=pytest.fail)
    return data


def test_a_post_mortem_has_the_documented_keys() -> None:
    run = runs.logit_growth()
    findings = tuple(postmortem(run).findings)
    subject = Subject(run.path, findings, run.header.anatomy, run.header.recipe, run, (SPIKE,))
    data = written(Report("postmortem", (subject,)))
    assert set(data) == documented("Post-mortem")
    assert set(data["runs"][0]) == documented("A run")
    assert set(data["runs"][0]["incidents"][0]) == documented("An incident")
    assert {finding["verdict"] for finding in data["findings"]} == {"fired", "clear", "not_evaluated"}
    assert all(set(finding) == documented("A finding") for finding in data["findings"])


def test_an_audit_has_the_documented_keys() -> None:
    finding = Finding("Model", "SL101", "missing-qk-norm", "clear")
    data = written(Report("audit", (Subject("Model", (finding,), runs.header().anatomy, runs.header().recipe),)))
    assert set(data) == documented("Audit")
    assert data["model"] == "Model" and data["anatomy"]["norm_placement"] == "pre" and data["recipe"]["lr"] == 0.1


def test_kinds_and_verdicts_are_the_documented_ones() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, options in (("kind", Kind), ("verdict", Verdict), ("severity", Severity), ("recovery", Recovery)):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert all(f"`{option}`" in row for option in get_args(options)), name
