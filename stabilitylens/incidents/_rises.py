"""Lasting rises: where a curve went up and never came back, however slowly.

At each point the least of all that follows is compared with the least of all that went before. Where the
first is clearly higher, the curve left its best level for good. Running means keep noise out of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.ndimage import uniform_filter1d

from stabilitylens.incidents._baseline import scale
from stabilitylens.incidents._curve import SCALE_FLOOR, Points
from stabilitylens.incidents._trend import split
from stabilitylens.incidents._windows import Seen

#: a rise smaller than this share of the level is no event. *Heuristic*: half of what counts as slow divergence.
LEAST = 0.05
#: and one smaller than this where it is a step at once. *Heuristic*: the least height of a spike.
LEAST_STEP = 0.02
#: in sigma of the running mean, whose least values before and after are compared. *Heuristic*.
SIGMA = 5.0
#: running means tried, and how many times as long the curve must be. *Heuristic*.
MEANS, LENGTHS = (5, 17, 65), 6
#: three in four values of a Gaussian are smaller, in standard deviations
THREE_IN_FOUR = 1.1503
#: with fewer points there are no means: the points themselves must rise by half and 3 sigma. *Heuristic*.
FEW, FEW_LEAST, FEW_SIGMA = 50, float(np.log(1.5)), 3.0
#: a level that was reached and left this often before is no news. *Heuristic*.
BEFORE, AS_HIGH, AS_LOW = 2, 0.7, 0.3
#: so many times the length of the rise is looked at before it. *Heuristic*.
BEFORE_IT = 2
#: places tried for the onset
KNOTS = 80
#: a rise is complete at this share of its height: the rest is noise. *Heuristic*.
NEARLY = 0.8
#: means of blocks that the lines are fitted to, at least; more would only cost time
BLOCKS = 200
#: a rise that is out of the noise, this many sigma, within so many points begins with the first that is, as far as so
#: many points on. *Heuristic*: one in 160 points of a Gaussian is as far out by chance.
OUT, STEEP, WITHIN = 2.5, 10.0, 10
#: it has begun at this share of its height: decay to 10 % is how public logs were measured
FOOT = 0.1
#: a step is one that makes up this share of the rise at once. *Heuristic*.
ABRUPT = 0.5
#: or this share, where it goes on rising from there. *Heuristic*.
ALSO = 0.15
#: and that fits better than a bend, leaving this share of its sum of squares. *Heuristic*.
BETTER = 0.9


@dataclass(frozen=True)
class Rise:
    """A rise that lasts to the end of the record; positions are points of the curve.

    Attributes:
        start: where it began; peak: its highest point.
        base: best level before it; height: how far above that the curve stayed, on the curve's scale.
        sigma: height over the noise of what it was read from.
        reached: where nearly all of the height had been gained; rate: height gained a point, from start to there.
        clarity: height over the least that counts, above 1.
        abrupt: whether it is a step rather than a bend.
    """

    start: int
    peak: int
    base: float
    height: float
    sigma: float
    reached: int
    rate: float
    clarity: float
    abrupt: bool = False


def _recurs(mean: Points, onset: int, height: float) -> bool:
    """Whether the curve had been as high above its best level before, and had come back, several times."""
    drawup = mean[:onset] - np.minimum.accumulate(mean[:onset])
    state = np.zeros(onset, int)
    state[drawup >= AS_HIGH * height], state[drawup <= AS_LOW * height] = 1, -1
    turns = state[state != 0]
    return int(np.sum((turns[:-1] == 1) & (turns[1:] == -1))) >= BEFORE


def _least(mean: Points) -> tuple[Points, Points]:
    """The least before each point, and the least from it on."""
    before = np.concatenate([[np.inf], np.minimum.accumulate(mean)[:-1]])
    return before, np.minimum.accumulate(mean[::-1])[::-1]


def _onset(flat: Points, low: int, reached: int, width: int, height: float) -> tuple[int, bool]:
    """Where a rise began: the best place for a bend or a step in a level that fits the curve around it; and whether a step."""
    first, last = max(0, low - max(3 * width, BEFORE_IT * (reached - low))), min(len(flat), reached + 3 * width)
    block = max(1, (last - first) // BLOCKS)
    x = np.arange(first + block // 2, last, block)
    y, knots = uniform_filter1d(flat, block)[x], np.unique(np.linspace(first + 2, min(reached, last - 5), KNOTS).astype(int))
    bends = [_fit(y, np.maximum(x - knot, 0)) for knot in knots]
    steps = [_fit(y, x >= knot, least=height * ABRUPT) for knot in knots]
    both = [_fit(y, x >= knot, np.maximum(x - knot, 0), least=height * ALSO) for knot in knots]
    if min(steps) < BETTER * min(bends):
        knot = int(knots[int(np.argmin(steps))])
    elif min(both) < BETTER * min(bends):
        knot = int(knots[int(np.argmin(both))])
    else:
        return _likeliest(knots, np.array(bends), len(y)), False
    beside = int(np.max(np.diff(knots), initial=1))
    before, near, after = np.split(flat[first:last], [max(1, knot - beside - first), knot + beside - first])
    level = float(np.median(after[: 3 * width]))
    return max(first + 1, knot - beside) + split(near, float(np.median(before)), level), True


def _likeliest(knots: Int[np.ndarray, " knot"], misfits: Float[np.ndarray, " knot"], points: int) -> int:
    """The mean of the knots by their likelihood in Gaussian noise: in much noise the best fit alone is far off more often."""
    if not np.isfinite(misfits.min()):
        return int(knots[0])
    likelihood = np.exp((misfits.min() - misfits) / (2 * max(misfits.min(), 1e-300) / points))
    return int(round(float(np.sum(likelihood * knots) / np.sum(likelihood))))


def _fit(y: Points, *changes: Points, least: float = 0.0) -> float:
    """Sum of squares that a level with upward changes leaves; infinite where the first change is too small.

    The curve's descent is taken off already: what came before the change is level.
    """
    lines = np.column_stack([np.ones(len(y)), *changes])
    solution = np.asarray(np.linalg.lstsq(lines, y, rcond=None)[0])
    misfit = float(np.sum((y - lines @ solution) ** 2))
    return misfit if float(solution[1]) >= least and float(solution[-1]) >= 0 else float("inf")


def _read(
    z: Points, flat: Points, mean: Points, spread: float, noise: float, width: int, least: float, sigmas: float
) -> Rise | None:
    """The lasting rise that one running mean shows."""
    before, after = _least(mean)
    gain = np.where(np.isfinite(before), after - before, -np.inf)
    height = float(np.max(gain))
    reached, enough = int(np.argmax(gain >= NEARLY * height)), max(min(least, LEAST_STEP), sigmas * spread)
    if not height >= enough or _recurs(mean, reached, height):
        return None
    low = int(np.argmin(mean[:reached]))
    start, abrupt = _onset(flat, low, reached, width, height) if width > 1 else (low + 1, False)
    if not abrupt and height < least:
        return None
    start = _out_of_noise(flat, start, reached, height, noise) if width > 1 else start
    peak = start + int(np.argmax(z[start:]))
    rate, clarity = height / max(1, reached - start), height / max(enough, 0.0 if abrupt else least)
    return Rise(start, peak, float(mean[low]), height, height / spread, reached, rate, clarity, abrupt)


def _out_of_noise(flat: Points, start: int, reached: int, height: float, noise: float) -> int:
    """The first point that leaves the noise, where a rise is so steep that it does so within a few."""
    if OUT * noise * max(1, reached - start) > STEEP * height:
        return start
    before = flat[max(0, start - 2 * WITHIN) : max(1, start - WITHIN // 2)]
    out = flat > float(np.median(before)) + max(OUT * noise, FOOT * height)
    while start > 1 and out[start - 1]:
        start -= 1
    later = np.flatnonzero(out[start : start + WITHIN])
    return start + int(later[0]) if len(later) else start


def rise(z: Points, flat: Points, seen: Seen) -> Rise | None:
    """The rise that a curve never came back from, or None; ``flat`` is the curve without its descent."""
    if len(z) < FEW:
        return _read(z, flat, z, _jitter(z), _jitter(z), 1, FEW_LEAST, FEW_SIGMA) if len(z) > 2 else None
    found = [_by_mean(z, flat, seen, width) for width in MEANS if width * LENGTHS <= len(z)]
    return max((r for r in found if r is not None), key=lambda r: r.clarity, default=None)


def _by_mean(z: Points, flat: Points, seen: Seen, width: int) -> Rise | None:
    """The lasting rise that a running mean of this width shows."""
    half = width // 2
    inner = slice(half, len(z) - half)
    mean = uniform_filter1d(seen.tame + (z - flat), width)[inner]
    noise = float(np.median(seen.noise))
    spread = max(noise / np.sqrt(width), _wander(mean, width))
    found = _read(z[inner], seen.tame[inner], mean, spread, noise, width, LEAST, SIGMA)
    return found and replace(found, **{name: getattr(found, name) + half for name in ("start", "peak", "reached")})


def _jitter(z: Points) -> float:
    """Noise of a few points, from what three in four neighbours differ by: one jump among them hardly matters."""
    return float(max(SCALE_FLOOR, np.quantile(np.abs(np.diff(z)), 0.75) / (THREE_IN_FOUR * np.sqrt(2))))


def _wander(mean: Points, width: int) -> float:
    """How much neighbouring, not overlapping, means differ: more than noise where the curve wanders."""
    apart = mean[::width]
    second = apart[2:] - 2 * apart[1:-1] + apart[:-2]
    return float(np.median(scale(second, len(second)))) / np.sqrt(6) if len(second) > 4 else 0.0
