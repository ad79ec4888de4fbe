"""The divergence detector."""

from __future__ import annotations

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import of_kind
from stabilitylens.run import Run


@detector
def divergence(run: Run) -> list[Incident]:
    """The loss rose and never came back: without settling, to where it began, or slowly, by 10 % in 200 points.

    The least of all that follows is compared with the least of all that went before, in running means, see
    ``_rises``. A level that the loss had reached and left several times before is not a divergence.
    """
    return of_kind(run, "divergence", "error")
