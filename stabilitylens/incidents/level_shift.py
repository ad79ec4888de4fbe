"""The level shift detector."""

from __future__ import annotations

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import of_kind
from stabilitylens.run import Run


@detector
def level_shift(run: Run) -> list[Incident]:
    """The loss stepped up to a level that it kept to the end.

    What rises further, never settles, or loses all that was learnt is a divergence. Where the learning rate restarts at
    the same step, it is a new stage, and for information.
    """
    return of_kind(run, "level_shift", "warning")
