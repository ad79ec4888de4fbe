"""The gradient spike detector."""

from __future__ import annotations

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import of_kind
from stabilitylens.run import Run


@detector
def grad_spike(run: Run) -> list[Incident]:
    """The global gradient norm rose far above its trend.

    Most such spikes leave the loss alone: of 235 in public logs above 6 sigma, 7 % had a loss excursion within
    two logs. They are for information, and evidence for what happens to the loss.
    """
    return of_kind(run, "grad_spike", "info", metric="grad_norm", kinds=("spike", "outlier"))
