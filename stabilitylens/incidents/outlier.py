"""The outlier detector."""

from __future__ import annotations

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import of_kind
from stabilitylens.run import Run


@detector
def outlier(run: Run) -> list[Incident]:
    """One bad batch: the loss was high for one log and back within three.

    Healthy per-step losses of language models are right-skewed, with 5 to 6 in 1,000 points above 6 sigma, so
    outliers are for information: the batch is worth a look, the run goes on. One that is half as high again as the
    loss, and far beyond the tail of the run's own noise, is a warning.
    """
    return of_kind(run, "outlier", "info")
