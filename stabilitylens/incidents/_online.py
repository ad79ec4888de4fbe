"""What smells of trouble at the step that has just ended, from the scalars that every step has.

The detectors of this package read a whole curve, both sides of an incident. This one has only the past and a few
microseconds: it is for deciding to look closer, not for a verdict.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from statistics import median

from stabilitylens.incidents._curve import SCALE_FLOOR, SINGLE

#: steps that the level and the noise are taken over. *Heuristic*: follows a schedule, outlives a spike.
WINDOW = 64
#: steps before anything can smell. *Heuristic*: a median of fewer says little, and NaN smells at once.
LEAST = 8
#: sigma of a Gaussian over its median absolute deviation
MAD = 1.4826
#: an ordinary log gradient norm strays further than a loss: one step in 200 exceeds 6 sigma in healthy runs. *Heuristic*.
GRADIENT = 8.0


def _far_above(logs: Collection[float], threshold: float) -> float:
    level = median(logs)
    noise = MAD * median(abs(x - level) for x in logs)
    return level + threshold * max(noise, SCALE_FLOOR)


def loss_limit(past: Collection[float]) -> float:
    """Above which a loss smells after these, none of which did; infinite where they are too few to tell."""
    return _limit_after(past, SINGLE)


def norm_limit(past: Collection[float]) -> float:
    """The same of a gradient norm."""
    return _limit_after(past, GRADIENT)


def _limit_after(past: Collection[float], threshold: float) -> float:
    logs = [math.log(value) for value in past if value > 0 and math.isfinite(value)]
    return math.exp(_far_above(logs, threshold)) if len(logs) >= LEAST else math.inf


class _Level:
    """The past of one series in logarithms, points that stood out left out of it."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._past: deque[float] = deque(maxlen=WINDOW)
        self._outside = 0

    def stands_out(self, value: float) -> bool:
        """Whether a value is far above the past; it joins the past if not, or if half a window went on like it."""
        x = math.log(value) if value > 0 else -math.inf
        out = self.is_far(value)
        self._outside = self._outside + 1 if out else 0
        if self._outside > WINDOW // 2:  # a new level, not an excursion
            self._past.clear()
            self._outside = 0
        if not out and math.isfinite(x):
            self._past.append(x)
        return out

    def is_far(self, value: float) -> bool:
        """Whether a value is far above the past, of which it stays no part."""
        return len(self._past) >= LEAST and value > 0 and math.log(value) > self._limit()

    def _limit(self) -> float:
        return _far_above(self._past, self._threshold)


class OnlineDetector:
    """Follows loss and gradient norm step by step; names the kinds of incident that the newest step smells of."""

    def __init__(self) -> None:
        self._loss, self._gradient = _Level(SINGLE), _Level(GRADIENT)

    def update(self, loss: float | None, grad_norm: float | None, skipped: bool = False) -> frozenset[str]:
        """Take in one step.

        Args:
            loss, grad_norm: of the step; None where one is not observed. One that is not positive is not judged.
            skipped: whether the optimizer took no step, as a loss scaler has it: its gradient norm is not judged.

        Returns:
            Of ``spike``, ``grad_spike`` and ``nonfinite`` those that the step smells of.
        """
        found = set()
        if loss is not None and self._judge(loss, self._loss):
            found.add("spike" if math.isfinite(loss) else "nonfinite")
        if grad_norm is not None and not skipped and self._judge(grad_norm, self._gradient):
            found.add("grad_spike" if math.isfinite(grad_norm) else "nonfinite")
        return frozenset(found)

    def gradient_is_far(self, grad_norm: float) -> bool:
        """Whether a gradient norm would smell, without taking it in."""
        return not math.isfinite(grad_norm) or self._gradient.is_far(grad_norm)

    @staticmethod
    def _judge(value: float, level: _Level) -> bool:
        return not math.isfinite(value) or level.stands_out(value)
