"""What a detector is, and how all of them run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stabilitylens.incidents._incident import Incident
from stabilitylens.registry import Registry, page_of
from stabilitylens.run import Run


@dataclass(frozen=True)
class Detector:
    """A detector: name (its file's), page (its docstring) and the function that finds incidents."""

    name: str
    page: str
    find: Callable[[Run], list[Incident]]


DETECTORS: Registry[Detector] = Registry("stabilitylens.incidents")


def detector(find: Callable[[Run], list[Incident]]) -> Callable[[Run], list[Incident]]:
    """Register a detector under its function's name, which is its file's."""
    DETECTORS.add(find.__name__, Detector(find.__name__, page_of(find), find), find)
    return find


def detect(run: Run) -> list[Incident]:
    """All incidents of a run, by every detector, in order of start.

    Args:
        run: a run with at least one series; a run without a loss has no incidents on the loss.
    """
    found = [incident for member in DETECTORS for incident in member.find(run)]
    return sorted(found, key=lambda incident: (incident.start_step, incident.kind))
