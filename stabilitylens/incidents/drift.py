"""The drift detector."""

from __future__ import annotations

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import of_kind
from stabilitylens.run import Run


@detector
def drift(run: Run) -> list[Incident]:
    """The loss rose for good, but more slowly than 10 % in 200 points.

    Slow rises inside later epochs are the signature of memorised data, and rises over thousands of steps that
    of a changing data mix; both are for information.
    """
    return of_kind(run, "drift", "info")
