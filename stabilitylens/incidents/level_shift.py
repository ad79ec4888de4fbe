"""The level shift detector."""

from __future__ import annotations

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import of_kind
from stabilitylens.run import Run


@detector
def level_shift(run: Run) -> list[Incident]:
    """The loss stepped up and had not come back by the end, by less than makes a divergence."""
    return of_kind(run, "level_shift", "warning")
