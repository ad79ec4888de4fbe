"""The report as JSON: a contract, described in docs/json.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from stabilitylens.reports._public import olmo_score
from stabilitylens.reports._reporter import reporter

if TYPE_CHECKING:
    from stabilitylens.dumps import Dump
    from stabilitylens.report import Report, Subject
    from stabilitylens.run import Run

#: version of the contract; raised when a key changes its meaning or goes
SCHEMA = 1


@reporter("json")
def write(report: Report, stream: TextIO) -> None:
    """Indented, keys in the order of the contract, with a final newline."""
    document = _audit(report) if report.kind == "audit" else _postmortem(report)
    json.dump(plain(document), stream, indent=2, allow_nan=False)
    stream.write("\n")


def plain(value: Any) -> Any:
    """NumPy to Python, tuples to lists, and null for what is not a finite number."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _postmortem(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "headline": report.verdict,
        "runs": [_run(subject) for subject in report.subjects],
        "findings": [finding.to_dict() for finding in report.findings],
        "suspects": report.suspects,
    }


def _run(subject: Subject) -> dict[str, Any]:
    run, loss, header = subject.run, subject.loss, subject.header
    assert run is not None
    coverage = header.coverage
    return {
        "path": run.path,
        "format": run.format,
        "points": len(loss) if loss is not None else 0,
        "loss_key": run.loss_key or (loss.name if loss is not None else None),
        "series": list(run),
        "spike_score": olmo_score(subject),
        "incidents": [
            incident.to_dict() | {"context": _dict(context)}
            for incident, context in zip_longest(subject.incidents, subject.contexts)
        ],
        "events": [{"step": event.step, "kind": event.kind, "text": event.text} for event in run.events],
        "dumps": [dump.to_dict() | {"incidents": _incidents_of(subject, dump)} for dump in subject.dumps],
        "notes": [*run.notes, *subject.failures],
        "coverage": {
            "parameters": coverage.parameters,
            "layers": coverage.layers,
            "attention": coverage.attention,
            "not_observed": [{"what": what, "why": why} for what, why in coverage.not_observed],
        },
        "sampling": header.sampling,
        "anatomy": _dict(subject.anatomy),
        "recipe": _dict(subject.recipe),
    }


def _incidents_of(subject: Subject, dump: Dump) -> list[int]:
    return [i for i, incident in enumerate(subject.incidents) if subject.dump_of(incident) == dump]


def _audit(report: Report) -> dict[str, Any]:
    (subject,) = report.subjects
    return {
        "schema": SCHEMA,
        "headline": report.verdict,
        "model": subject.name,
        "anatomy": _dict(subject.anatomy),
        "recipe": _dict(subject.recipe),
        "initial": _initial(subject.initial),
        "findings": [finding.to_dict() for finding in subject.findings],
    }


def _initial(run: Run | None) -> dict[str, Any] | None:
    """What was measured before training, by series; what was not observed is left out."""
    return {name: series.values[-1] for name, series in run.series.items() if series.observed()} if run is not None else None


def _dict(data: Any) -> dict[str, Any] | None:
    return data.to_dict() if data is not None else None
