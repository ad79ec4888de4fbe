"""The spike detector."""

from __future__ import annotations

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import of_kind
from stabilitylens.run import Run


@detector
def spike(run: Run) -> list[Incident]:
    """The loss rose above its trend for more than one log and came back.

    Height does not tell a spike from one bad batch, width does: a spike has two points or more at half
    height, or takes more than three to decay. It is judged against what was expected there, in robust sigma
    of the log-space residual, see ``_baseline`` and ``_scores``. A bump before anything was learnt is
    warm-up, an improvement is none. Spikes that come at an interval are told with it where they are tall and narrow;
    a ripple is the order of the data.
    """
    return of_kind(run, "spike", "warning")
