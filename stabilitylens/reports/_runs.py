"""Many runs in one report: which of them to read first, and which say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stabilitylens.findings import SEVERITIES
from stabilitylens.gravity import gravest_first, gravity

if TYPE_CHECKING:
    from stabilitylens.report import Subject

#: runs whose verdict a reader sees at once
LEADING = 6


def gravest_runs(subjects: Sequence[Subject]) -> list[int]:
    """Indices of the runs, those with the gravest findings and incidents first, else as they came; few stay as they came."""
    if len(subjects) <= LEADING:
        return list(range(len(subjects)))
    return sorted(range(len(subjects)), key=lambda i: _key(subjects[i]), reverse=True)


def _key(subject: Subject) -> tuple[int, tuple[int, bool, float]]:
    fired = max((SEVERITIES[f.severity or "info"] for f in subject.by_verdict("fired")), default=-1)
    worst = next((gravity(incident) for incident in gravest_first(subject.incidents)), (-1, False, 0.0))
    return max(fired, worst[0]), worst


def alike(subjects: Sequence[Subject]) -> list[list[int]]:
    """Indices of the runs in groups of which the same rules are clear, and the same not evaluated for the same reasons."""
    groups: dict[tuple[tuple[str, str, str | None], ...], list[int]] = {}
    for i, subject in enumerate(subjects):
        key = tuple((f.verdict, f.code, f.lacks) for f in subject.findings if f.verdict != "fired")
        groups.setdefault(key, []).append(i)
    return list(groups.values())
