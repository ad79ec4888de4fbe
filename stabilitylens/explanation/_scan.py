"""When a column of numbers left its own past: a scan over stretches of whitened samples.

Each column is freed of its trend and of its memory as its baseline has them, a straight line and a first-order
autoregression (Box and Jenkins 1970). What remains is a row of innovations, of which the mean over every stretch of the
lead is compared with the baseline's spread. A stretch's p-value has Student's tails with few degrees of freedom, since
training series are heavy-tailed, times the number of stretches that were tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtr

from stabilitylens.explanation._window import Window, even
from stabilitylens.rules._track import median

#: degrees of freedom of the tails. *Heuristic*: healthy per-step losses in public logs have a kurtosis of 13 to 34,
#: which is that of Student's t with a little over 4; the excess of a mean falls as its samples grow.
TAILS = 5
#: samples of a baseline that give a degree of freedom, up to those: a spread of ten samples may be far off. *Heuristic*.
PER_DEGREE = 4
#: the least standard deviation that is believed, on a log scale: as in incidents, half a per cent
FLOOR = 0.005
#: a movement of less than this, on a log scale, is nobody's cause, however certain. *Heuristic*: a twentieth.
MATERIAL = 0.05
#: what stands out less than this many times the highest of the baseline has happened before. *Heuristic*: no tail that
#: is assumed is heavy enough for a series of rare high points.
NOVEL = 2.0
#: a median absolute deviation times this is a Gaussian's standard deviation
MAD = 1.4826
#: stretches of these many samples are tried. *Heuristic*: each twice the one before.
LENGTHS = (1, 2, 4, 8)
#: an onset is a sample that stands out by this many sigma. *Heuristic*.
ONSET = 3.0


@dataclass(frozen=True)
class Scan:
    """The stretch of each column that stands out most.

    Attributes:
        p: its probability under noise, corrected for the stretches that were tried.
        onset: the sample at which it begins.
        sigma: height of its mean innovation in standard errors, signed.
        shift: the largest change against the baseline's line, on the even scale, signed.
    """

    p: Float[np.ndarray, " place"]
    onset: Int[np.ndarray, " place"]
    sigma: Float[np.ndarray, " place"]
    shift: Float[np.ndarray, " place"]


def _spread(values: Float[np.ndarray, "sample place"]) -> Float[np.ndarray, " place"]:
    return np.asarray(MAD * median(np.abs(values - median(values, 0)), 0))


def _detrended(z: Float[np.ndarray, "sample place"], lead: int) -> Float[np.ndarray, "sample place"]:
    """Without the line through the medians of both halves of the baseline."""
    half = lead // 2
    early, late = median(z[:half], 0), median(z[half:lead], 0)
    slope = (late - early) / (lead / 2)
    middle = (half - 1) / 2
    at = np.arange(len(z))[:, None] - middle
    return np.asarray(z - early - slope * at)


def _memory(residual: Float[np.ndarray, "sample place"]) -> Float[np.ndarray, " place"]:
    """First-order autocorrelation, outliers pulled in, its small-sample bias put right; from 0 to 1."""
    bound = 3 * np.maximum(_spread(residual), FLOOR)
    held = np.clip(residual - median(residual, 0), -bound, bound)
    both = np.nansum(held[1:] * held[:-1], axis=0)
    phi = both / np.maximum(np.nansum(held**2, axis=0), 1e-30)
    return np.asarray(np.clip(phi + (1 + 3 * phi) / len(residual), 0.0, 1.0))


def _innovations(z: Float[np.ndarray, "sample place"], lead: int) -> tuple[Float[np.ndarray, "sample place"], Float[np.ndarray, " place"]]:
    """Whitened samples in standard deviations, and how much memory is left in them as a factor of a mean's variance."""
    flat = _detrended(z, lead)
    out = flat.copy()
    out[1:] -= _memory(flat[:lead]) * flat[:-1]
    out[0] = np.nan
    out = out - median(out[:lead], 0)
    left = _memory(out[1:lead])
    return out / np.maximum(_spread(out[:lead]), FLOOR), (1 + left) / np.maximum(1 - left, 0.05)


def _sums(values: Float[np.ndarray, "sample place"]) -> Float[np.ndarray, "edge place"]:
    return np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])


@dataclass(frozen=True)
class _Best:
    """The stretch of one length that stands out most, a column."""

    score: Float[np.ndarray, " place"]
    first: Int[np.ndarray, " place"]
    tried: int
    length: int


def _best(
    white: Float[np.ndarray, "sample place"], inflation: Float[np.ndarray, " place"], lead: int, first: int, stop: int
) -> list[_Best]:
    """For each length, the stretch between ``first`` and ``stop`` that stands out most."""
    seen, total = _sums(~np.isnan(white)), _sums(np.nan_to_num(white))
    past = inflation / np.maximum(seen[lead], 1)
    out = []
    for length in (n for n in LENGTHS if n <= stop - first):
        begin = np.arange(first, stop - length + 1)
        n = np.maximum(seen[begin + length] - seen[begin], 1)
        score = (total[begin + length] - total[begin]) / n / np.sqrt((inflation if length > 1 else 1.0) / n + past)
        at = np.argmax(np.abs(score), axis=0)
        out.append(_Best(score[at, np.arange(white.shape[1])], begin[at], len(begin), length))
    return out


def _p_value(best: _Best, n: Int[np.ndarray, " place"]) -> Float[np.ndarray, " place"]:
    """Two-sided, times the stretches of its length; the mean over more samples has lighter tails."""
    degrees = np.clip(n / PER_DEGREE, 1, TAILS + np.log2(best.length))
    return np.asarray(2 * stdtr(degrees, -np.abs(best.score)) * best.tried)


def scan(found: Window, first: int, stop: int) -> Scan:
    """Look for the stretch that stands out most among the samples from ``first`` to before ``stop``."""
    z, lead = even(found.values), found.lead
    white, inflation = _innovations(z, lead)
    best, n = _best(white, inflation, lead, first, stop), np.sum(~np.isnan(z[:lead]), axis=0)
    each = np.array([_p_value(one, n) for one in best]) * len(best)
    scores, firsts = np.array([one.score for one in best]), np.array([one.first for one in best])
    highest, columns = np.argmax(np.abs(scores), axis=0), np.arange(z.shape[1])
    score, onset = scores[highest, columns], firsts[highest, columns]
    shift = _shift(z - median(z[:lead], 0), onset, stop, np.sign(score))
    usual = np.max([np.abs(one.score) for one in _best(white, inflation, lead, 1, lead)], axis=0)
    counts = (np.abs(shift) >= MATERIAL) & (n >= lead / 2) & (np.abs(score) >= NOVEL * usual)
    p = np.where(counts, np.minimum(1.0, each.min(axis=0)), 1.0)
    lengths = np.array([one.length for one in best])[highest]
    return Scan(p, _onset(white, onset, lengths, np.sign(score), first), score, shift)


def _shift(
    moved: Float[np.ndarray, "sample place"], onset: Int[np.ndarray, " place"], stop: int, sign: Float[np.ndarray, " place"]
) -> Float[np.ndarray, " place"]:
    """The largest move from the onset on to the side of ``sign``."""
    at = np.arange(len(moved))[:, None]
    inside = np.where((at >= onset) & (at < stop), np.nan_to_num(moved * sign), 0.0)
    return np.asarray(sign * np.max(inside, axis=0))


def _onset(
    white: Float[np.ndarray, "sample place"], best: Int[np.ndarray, " place"], length: Int[np.ndarray, " place"],
    sign: Float[np.ndarray, " place"], first: int,
) -> Int[np.ndarray, " place"]:
    """The first sample of a stretch that stands out by itself, if any does, moved back while those before it do too."""
    at, columns = np.arange(len(white))[:, None], np.arange(white.shape[1])
    stands = sign * np.nan_to_num(white) > ONSET
    inside = stands & (at >= best) & (at < best + length)
    out = np.where(inside.any(axis=0), np.argmax(inside, axis=0), best)
    for _ in range(int(out.max(initial=first)) - first):
        out = np.where(stands[np.maximum(out - 1, 0), columns] & (out > first), out - 1, out)
    return out
