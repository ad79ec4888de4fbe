"""Extremes over windows that grow with the run, so that TensorBoard shows every spike.

TensorBoard keeps 1,000 points a tag and draws a random choice of them. A window that begins ``n`` steps
after the run's first is ``max(1, n // 48)`` steps long: 48 points for the first 48 steps, then at most
48 a doubling (33 on average), below 1,000 up to 10^10 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

POINTS = 48


@dataclass
class Window:
    """Collects one tag's values; what is not finite counts as worse than any number.

    Attributes:
        origin: first step of the run.
        low: whether the smallest value is the worrying one.
    """

    origin: int
    low: bool = False
    _end: int | None = None
    _step: int = 0
    _worst: float = math.nan
    _rank: float = -math.inf

    def add(self, step: int, value: float) -> tuple[int, float] | None:
        """Take a value; returns the step and value of the window's worst where this value ended it."""
        if self._end is None:
            self._end = step + max(1, (step - self.origin) // POINTS)
        rank = (-value if self.low else value) if math.isfinite(value) else math.inf
        if rank > self._rank or self._rank == -math.inf:
            self._step, self._worst, self._rank = step, value, rank
        return self.flush() if step + 1 >= self._end else None

    def flush(self) -> tuple[int, float] | None:
        """The worst of the window so far, and begin a new one; None where it is empty."""
        if self._end is None:
            return None
        point = self._step, self._worst
        self._end, self._rank = None, -math.inf
        return point
