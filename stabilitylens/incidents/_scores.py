"""How far each point stands above what was expected, in sigma, for excursions of several widths.

Wide and low excursions drown in the noise of single points, so the curve is also read through running
means of 5 to 65 points, its single points clipped to 3 sigma first: a mean of heavy-tailed noise is then
as tame as one of Gaussian noise. Pairs are judged by their lower point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.ndimage import median_filter, uniform_filter1d

from stabilitylens.incidents._baseline import SCALE_WINDOW, expected, scale
from stabilitylens.incidents._curve import SINGLE, Points

#: widths of the running means. *Heuristic*: recovered spikes in public logs last 2 to 68 points.
MEANS = (5, 9, 17, 33, 65)
#: a mean is read only where the curve is this many times as long. *Heuristic*.
LENGTHS = 5
#: two neighbours, both this far out, and means. *Heuristic*: Gaussian noise has such a pair in one of 300 runs of
#: 1,000 points; the worst mean in 40 healthy public logs has 5.0.
PAIR = 2.9
MEAN = 5.2
#: a level that this share of the points, and so many of them, stand above is a common one: in healthy per-step losses
#: of language models 13 to 16 points in 1,000 stand above 4 sigma. *Heuristic*.
COMMON_SINGLE, COMMON_POINTS = 0.01, 8
#: two neighbours are judged by the level that two independent ones pass together in this share of runs of that length.
#: *Heuristic*.
CHANCE_PAIR = 0.15
#: a second data source may be every fiftieth batch: two neighbours have to be this far above the level that as many
#: points reach. *Heuristic*.
SOURCE, ABOVE_SOURCE = 0.02, 1.4
#: how far above the common ones a point has to be. *Heuristic*: between the last healthy point and the first bad batch
#: of public logs, 1.55 and 1.84 times.
ABOVE_COMMON = 1.7
#: the same for gradient norms, whose spikes are for information.
ABOVE_OTHERS = 1.4
CLIP = 3.0
#: the thresholds are those for so many points, or fewer: most of the public logs they were read from are shorter
POINTS = 2000
#: neighbours that correlate more are no longer two witnesses; 0.83 was seen for a printed moving average.
INDEPENDENT = 0.45


@dataclass(frozen=True)
class Score:
    """One reading of a curve.

    Attributes:
        width: points that it reads together.
        sigma: excess over the expectation, in robust standard deviations; NaN where nothing was expected.
        base: the expectation, on the curve's scale.
        threshold: above it a point is part of an excursion.
    """

    width: int
    sigma: Points
    base: Points
    threshold: float


@dataclass(frozen=True)
class Ground:
    """The noise of a curve's points, the curve with them clipped, and what single ones reach."""

    noise: Points
    tame: Points
    alone: Float[np.ndarray, " alone"]


@dataclass(frozen=True)
class Readings(Ground):
    """All readings of a curve, and the ground that they stand out of."""

    scores: list[Score]


def grown(threshold: float, points: int, witnesses: int = 1) -> float:
    """A threshold in sigma for so many points: among more of them chance reaches further.

    The highest of n Gaussian values grows as the root of 2 ln n, and the highest pair as that of ln n.
    """
    return float((threshold**2 + 2 / witnesses * np.log(max(points, POINTS) / POINTS)) ** 0.5)


def clipped(z: Points) -> Points:
    """The curve with its points held within 3 sigma of their running median."""
    middle = median_filter(z, size=13, mode="nearest")
    reach = CLIP * scale(z - middle)
    return np.asarray(np.clip(z, middle - reach, middle + reach))


def _alone(sigma: Points) -> Float[np.ndarray, " alone"]:
    """The points whose neighbours are unremarkable: what single points do, excursions left out."""
    quiet = np.nan_to_num(sigma, nan=0.0) < CLIP
    beside = np.concatenate([quiet[1:], [True]]) & np.concatenate([[True], quiet[:-1]])
    return np.asarray(sigma[beside & np.isfinite(sigma)])


def _dependence(sigma: Points) -> float:
    """Correlation of neighbours, from 0 to 1: high where the log prints a moving average."""
    tame = np.clip(sigma[np.isfinite(sigma)], -CLIP, CLIP)
    if len(tame) < 20 or tame.std() == 0:
        return 0.0
    tame = tame - tame.mean()
    return float(np.clip(np.mean(tame[1:] * tame[:-1]) / np.mean(tame**2), 0.0, 1.0))


def _common(alone: Float[np.ndarray, " alone"], share: float, least: int = 1) -> float:
    """The level that a share of the points, and no fewer than so many of them, stand above."""
    points = max(share * len(alone), least)
    return float(np.quantile(alone, 1 - points / len(alone))) if points < len(alone) else 0.0


def readings(
    z: Points, quiet: Points | None = None, calm: Points | None = None, above: float = ABOVE_COMMON, points: int = 0
) -> Readings:
    """The readings of a curve, from single points to the widest mean that it is long enough for.

    Args:
        z: the curve without its descent.
        quiet: the same with known excursions taken out; what is expected, and how far the curve usually
            strays, is learnt from it.
        calm: the same with suspected ones taken out too; how far the means usually stray is learnt from it.
        above: how far above the common ones a single point has to be.
        points: those of the whole record, where the curve is a part of it.
    """
    points = max(points, len(z))
    quiet = z if quiet is None else quiet
    base = expected(quiet, 1)
    noise = scale(quiet - base)
    sigma = (z - base) / noise
    alone = _alone(sigma)
    found = [Score(1, sigma, base, max(grown(SINGLE, points), above * _common(alone, COMMON_SINGLE, COMMON_POINTS)))]
    if len(z) > 2:
        found.append(_pairs(z, quiet, base, noise, alone, points))
    scores = [*found, *_means(z, quiet, quiet if calm is None else calm, noise, points)]
    return Readings(noise, clipped(z), alone, scores)


def _pairs(
    z: Points, quiet: Points, base: Points, noise: Points, alone: Float[np.ndarray, " alone"], points: int
) -> Score:
    """Neighbours, by the lower of the two."""
    wide = expected(quiet, 2)
    lower = np.append((np.minimum(z[:-1], z[1:]) - wide[:-1]) / noise[:-1], np.nan)
    two = grown(PAIR, points, 2) + (SINGLE - PAIR) * np.clip((_dependence((quiet - base) / noise) - INDEPENDENT) * 3, 0.0, 1.0)
    chance = _common(alone, (CHANCE_PAIR / points) ** 0.5)
    return Score(2, lower, wide, max(float(two), chance, ABOVE_SOURCE * _common(alone, SOURCE)))


def _means(z: Points, quiet: Points, calm: Points, noise: Points, points: int) -> Iterator[Score]:
    """Running means of all widths that the curve is long enough for."""
    tame, calm = clipped(z), clipped(calm)
    for width in (w for w in MEANS if w * LENGTHS <= len(z)):
        wide = expected(quiet, width)
        spread = scale(uniform_filter1d(calm, width) - wide, max(SCALE_WINDOW, 8 * width))
        excess = uniform_filter1d(tame, width) - wide
        yield Score(width, excess / np.maximum(spread, noise / np.sqrt(width)), wide, grown(MEAN, points))
