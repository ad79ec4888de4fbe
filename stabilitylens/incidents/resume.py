"""The resume detector."""

from __future__ import annotations

import numpy as np

from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import plain
from stabilitylens.run import Run


@detector
def resume(run: Run) -> list[Incident]:
    """Training was resumed: what follows may differ for that alone (cold optimizer state, data order, schedule)."""
    if "loss" not in run or not len(run["loss"]):
        return []
    series, found = run["loss"], []
    for step in sorted({event.step for event in run.events if event.kind == "resume"}):
        at = int(np.clip(np.searchsorted(series.steps, step), 0, len(series) - 1))
        told = f"training was resumed at step {step}."
        found.append(plain(series, "loss", "resume", at, at, "info", told, cost_steps=0))
    return found
