"""Which of several incidents is the gravest: what a report leads with, and looks into first."""

from __future__ import annotations

import math
from collections.abc import Iterable

from stabilitylens.findings import SEVERITIES
from stabilitylens.incidents import Incident


def gravity(incident: Incident) -> tuple[int, bool, float]:
    """A key to compare incidents by: severity, the loss before other series, then what was lost."""
    return SEVERITIES[incident.severity], incident.metric == "loss", lost(incident)


def lost(incident: Incident) -> float:
    """How far the series went, in sigma, times the steps until it was back; infinite where it was not finite."""
    if incident.kind == "nonfinite":
        return math.inf
    far = incident.magnitude if math.isfinite(incident.magnitude) else 0.0
    return abs(far) * max(1, incident.cost_steps)


def gravest_first(incidents: Iterable[Incident]) -> list[Incident]:
    """The gravest first; of equally grave ones the longest, then the first."""
    return sorted(incidents, key=lambda i: (*(-part for part in gravity(i)), i.start_step - i.end_step, i.start_step))
