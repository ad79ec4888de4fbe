"""Incident: something that happened to a series, with where it began, peaked and ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from stabilitylens.findings import Severity

Kind = Literal[
    "spike", "outlier", "divergence", "level_shift", "drift", "collapse", "plateau", "nonfinite",
    "grad_spike", "steps_skipped", "resume",
]
Recovery = Literal["fast", "slow", "partial", "none"]


@dataclass(frozen=True)
class Incident:
    """One event on one series; indices count the points of that series from 0, ends are inclusive.

    Attributes:
        metric: name of the series, ``loss`` for the chosen loss.
        width: points at or above half height.
        magnitude: height over the baseline, in robust standard deviations of the log-space residual
            (NaN where it has none, e.g. for a non-finite value).
        recovery: how far and how fast the series came back; None where that has no meaning.
        cost_steps: steps until it was back at its baseline, or to the end of the run.
        explanation: one sentence for a person, with the numbers in it.
    """

    kind: Kind
    metric: str
    start_step: int
    end_step: int
    start_index: int
    end_index: int
    peak_step: int
    peak_index: int
    width: int
    magnitude: float
    recovery: Recovery | None
    cost_steps: int
    severity: Severity
    confidence: float
    explanation: str

    def to_dict(self) -> dict[str, Any]:
        """The incident as plain data, keys as in the JSON contract."""
        return asdict(self)
