"""Where a track is going: robust, since a sampled maximum is noisy and its noise is skewed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from stabilitylens.rules._track import MIN_SAMPLES, Track

#: heuristic: medians that a long track is thinned to before every pair of points is compared
BINS = 64
#: confidence of the interval of a slope: the usual 95 %
CONFIDENCE = 0.95
#: heuristic: rise over the last half of a track, against its level, that counts as rising
RISE = 0.1
#: heuristic: level against the median of the last half that counts as rising without a trend
JUMP = 1.5
#: heuristic: level against the start that counts as grown
GREW = 2.0
#: heuristic: share of its peak that a level keeps where it has not come down again
KEPT = 0.5
#: so that differences of infinite values are finite
LARGEST = 1e300


@dataclass(frozen=True)
class Change:
    """Change over the last half of a track, by the Theil-Sen slope, with its 95 % interval."""

    low: float
    middle: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


def change(track: Track) -> Change:
    """Change over the last half of a track, at least eight samples of it."""
    recent = _thin(_last_half(track))
    if len(recent) < 2:
        return Change(0.0, 0.0, 0.0)
    from scipy.stats import theilslopes  # a second to import, and only long tracks need it

    fit = theilslopes(recent, np.linspace(0.0, 1.0, len(recent)), alpha=CONFIDENCE)
    return Change(float(fit.low_slope), float(fit.slope), float(fit.high_slope))


def rising(track: Track) -> bool:
    """Whether a positive quantity is still going up: a trend that noise does not explain, or a jump."""
    level = min(track.level, LARGEST)
    moved = change(track)
    trend = moved.low > 0 and moved.middle >= RISE * level
    return trend or level >= JUMP * float(np.median(_last_half(track)))


def held(track: Track) -> bool:
    """Whether a positive quantity grew over the run and has kept what it grew to."""
    peak = float(np.max(track.smooth))
    return track.level >= GREW * track.early and (track.level >= KEPT * peak)


def _last_half(track: Track) -> Float[np.ndarray, " step"]:
    recent = track.values[-max(MIN_SAMPLES, len(track.values) // 2) :]
    return np.asarray(np.clip(recent, -LARGEST, LARGEST))


def _thin(values: Float[np.ndarray, " step"]) -> Float[np.ndarray, " bin"]:
    width = len(values) // BINS
    if width < 2:
        return values
    return np.asarray(np.median(values[-BINS * width :].reshape(BINS, width), axis=1))
