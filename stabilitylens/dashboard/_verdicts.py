"""Findings and incidents of a recording, judged again as it grows."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import Any

from stabilitylens.dashboard._recording import Snapshot
from stabilitylens.findings import Finding
from stabilitylens.incidents import detect
from stabilitylens.report import Subject
from stabilitylens.rules import RULES, Evidence, judge
from stabilitylens.run import Run

#: bytes of an array beyond which it is judged on every so many samples, so that judging stays in bounded memory
WHOLE = 1 << 26
#: a run that grows is judged again after so many times as long as judging took, at least these seconds
PATIENCE, LEAST = 10.0, 2.0


@dataclass
class _Judged:
    version: str
    until: float
    data: dict[str, Any]


class Verdicts:
    """Keeps what was judged of each run."""

    def __init__(self) -> None:
        self._kept: dict[str, _Judged] = {}
        self._lock = threading.Lock()

    def of(self, name: str, snapshot: Snapshot) -> dict[str, Any]:
        """Headline, findings and incidents as plain data; ``version`` says of which state of the run."""
        with self._lock:
            kept, now = self._kept.get(name), time.monotonic()
            if kept is not None and (kept.version == snapshot.version or now < kept.until):
                return kept.data
            data = judged(name, snapshot)
            took = time.monotonic() - now
            self._kept[name] = _Judged(snapshot.version, now + took + max(LEAST, PATIENCE * took), data)
            return data


def judged(name: str, snapshot: Snapshot) -> dict[str, Any]:
    """Judge a run: arrays of more than 64 MB on every so many samples, which ``thinned`` names."""
    every = thinning(snapshot)
    run = snapshot.run(name, every)
    header = run.header
    findings = judge(Evidence(name, header.anatomy, header.recipe, run))
    incidents = tuple(detect(run))
    return {
        "version": snapshot.version,
        "headline": Subject(name, tuple(findings), header.anatomy, header.recipe, run, incidents).headline,
        "findings": [_plain(finding.to_dict() | {"target": target(finding, run)}) for finding in findings],
        "incidents": [_plain(incident.to_dict()) for incident in incidents],
        "thinned": every,
        "notes": snapshot.notes,
    }


def thinning(snapshot: Snapshot) -> dict[str, int]:
    """Of which large array every how many samples are judged."""
    return {name: n for name, track in snapshot.tracks.items() if (n := _every(track.shape, len(track.steps))) > 1}


def _every(shape: tuple[int, ...], samples: int) -> int:
    return -(-4 * math.prod(shape) * samples // WHOLE) if shape else 1


def target(finding: Finding, run: Run) -> dict[str, Any] | None:
    """The cell that a finding is about: the first observed series its rule needs, at its layer and head."""
    needs = RULES[finding.code].needs if finding.code in RULES else ()
    name = next((n for need in needs if need in run and (n := run[need].name) and run[need].observed()), None)
    if name is None:
        return None
    series = run[name]
    row = _row(series.axes[0], finding, run) if series.axes else None
    known = row is not None and row < series.values.shape[1]
    heads = series.axes[1:] == ("head",) and finding.where.head is not None
    return {
        "series": series.name, "row": row if known else None, "inner": finding.where.head if heads else None,
        "steps": list(finding.where.steps) if finding.where.steps else None,
    }


def _row(axis: str, finding: Finding, run: Run) -> int | None:
    layer = finding.where.layer
    if axis == "layer" or layer is None:
        return layer
    if axis != "attention":
        return None
    calls = run.header.anatomy.attention_calls if run.header.anatomy is not None else ()
    return next((i for i, call in enumerate(calls) if call.layer == layer), layer)


def _plain(value: Any) -> Any:
    """Plain data with words for numbers that are not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
