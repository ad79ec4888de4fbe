"""The first step at which two runs part, series by series, with noise allowed for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.ndimage import median_filter

from stabilitylens.findings import Where
from stabilitylens.incidents._trend import split
from stabilitylens.rules._track import median, place
from stabilitylens.run import Run, Series

#: differences below these are none, on a log scale: of a level that lasts, and the least noise. *Heuristic*.
MATERIAL, FLOOR = 0.02, 0.005
#: lengths of running medians, and how many standard deviations of single points each must pass. *Heuristic*: a single
#: point must stand out as data outliers of healthy runs do not; a median of 51 has a fifth of a point's noise.
WINDOWS = ((1, 12.0), (5, 4.0), (51, 1.5))
#: points that say how two runs differ from the start, at least and as a share of what they have in common
REFERENCE, SHARE = 8, 0.05
#: samples that noise is taken from at the beginning. *Heuristic*: its median is off by a tenth or so.
FIRST = 32
#: standard errors by which they must. *Heuristic*.
CERTAIN = 5.0
#: clocks, which differ between any two runs, and counters
LEFT_OUT = frozenset(("step_time",))


@dataclass(frozen=True)
class Parting:
    """Where one series of two runs parts.

    Attributes:
        series: its name.
        where: the first place to part.
        step: the first step at which they differ beyond noise; None where they never do.
        within: steps since the common sample before.
        equal_until: last step up to which all values are equal to the bit; None where none are.
        from_start: whether they differ from the first common step on.
        ratio: b over a at that sample, or over the next ones where that is more; NaN where it has no meaning.
        sigma: their distance there in standard deviations of a point's noise.
    """

    series: str
    where: Where
    step: int | None
    within: int
    equal_until: int | None
    from_start: bool
    ratio: float
    sigma: float

    def __str__(self) -> str:
        where = "" if str(self.where) == "the whole model" else f" of {self.where}"
        if self.step is None:
            return f"{self.series}{where} does not part"
        when = "from the start" if self.from_start else f"from step {self.step} on"
        return f"{self.series}{where} differs {when}" + (f", by a factor of {self.ratio:.3g}" if np.isfinite(self.ratio) else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, keys as in the JSON contract."""
        own = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "where"}
        where = {"layer": self.where.layer, "layer_name": self.where.layer_name, "head": self.where.head}
        return own | {"where": {k: v for k, v in where.items() if v is not None}}


@dataclass(frozen=True)
class _Common:
    """The common samples of a series, places side by side, on an even scale; ``apart`` is b less a."""

    steps: Int[np.ndarray, " sample"]
    a: Float[np.ndarray, "sample place"]
    b: Float[np.ndarray, "sample place"]
    apart: Float[np.ndarray, "sample place"]


def _common(a: Series, b: Series) -> _Common | None:
    steps, i, j = np.intersect1d(a.steps, b.steps, return_indices=True)
    if not len(steps) or a.values.shape[1:] != b.values.shape[1:]:
        return None
    x, y = (np.asarray(values, dtype=np.float64).reshape(len(steps), -1) for values in (a.values[i], b.values[j]))
    both = np.concatenate([x, y])
    sizes = np.abs(np.where(np.isfinite(both), both, 0.0))
    size = np.maximum(np.median(sizes, axis=0), 1e-3 * sizes.max(axis=0))
    size[size == 0] = 1.0
    with np.errstate(all="ignore"):
        positive = np.all((both > 0) | np.isnan(both), axis=0)
        scaled = [np.where(positive, np.log(v), np.arcsinh(v / size)) for v in (x, y)]
        apart = np.where(np.isfinite(scaled[0]) & np.isfinite(scaled[1]), scaled[1] - scaled[0], np.nan)
    broken = np.isfinite(x) != np.isfinite(y)
    return _Common(steps, x, y, np.where(broken & (np.isinf(x) | np.isinf(y) | (x.shape[1] == 1)), np.inf, apart))


def _noise(apart: Float[np.ndarray, "sample place"]) -> Float[np.ndarray, "sample place"]:
    """At each sample a robust standard deviation of a point, from the samples before it; at first from the first 32."""
    out = np.full(apart.shape, np.nan)
    edges = np.unique(np.geomspace(FIRST, max(len(apart), FIRST + 1), 16).astype(int))
    for first, last in zip(np.concatenate([[0], edges[:-1]]), edges, strict=True):
        known = apart[: max(first, FIRST)]
        steps = np.diff(np.where(np.isfinite(known), known, np.nan), axis=0)
        out[first:last] = 1.4826 * median(np.abs(steps), 0) / np.sqrt(2)
    return np.asarray(np.maximum(np.nan_to_num(out), FLOOR))


def _beyond(
    apart: Float[np.ndarray, "sample place"], noise: Float[np.ndarray, "sample place"]
) -> tuple[Int[np.ndarray, " place"], Int[np.ndarray, " place"]]:
    """The first sample of each place around which a running median is beyond noise, and that median's length.

    The number of samples stands for never.
    """
    at, length_at = np.full(apart.shape[1], len(apart)), np.ones(apart.shape[1], dtype=np.int64)
    known = np.where(np.isfinite(apart), apart, 0.0)
    for length, sigmas in WINDOWS:
        if length < len(apart):
            level = median_filter(known, size=(length, 1), mode="reflect") if length > 1 else np.where(np.isinf(apart), np.inf, known)
            out = np.abs(level) > np.maximum(MATERIAL, sigmas * noise)
            first = np.where(out.any(axis=0), np.argmax(out, axis=0), len(out))
            at, length_at = np.where(first < at, first, at), np.where(first < at, length, length_at)
    return at, length_at


def _edge(apart: Float[np.ndarray, " sample"], at: int, length: int) -> int:
    """Where within a running median's reach the level changes."""
    if length == 1 or at >= len(apart):
        return at
    known = np.nan_to_num(apart, posinf=0.0)
    first, last, half = max(0, at - length), min(len(known), at + length + 1), length // 2
    past, since = known[max(0, at - half - length) : max(0, at - half)], known[at + half : at + half + length]
    before, after = (float(np.median(side)) if len(side) else 0.0 for side in (past, since))
    return min(first + split(known[first:last], before, after), len(known) - 1)


def part(a: Run, b: Run, name: str) -> Parting | None:
    """Where one series parts; None where the runs have no step or shape of it in common."""
    common = _common(a.series[name], b.series[name])
    if common is None or np.isnan(common.apart).all():
        return None
    noise = _noise(common.apart)
    first, lengths = _beyond(common.apart, noise)
    columns = range(len(first))
    edges = [_edge(common.apart[:, c], int(first[c]), int(lengths[c])) for c in columns]
    starting = [_differs_at_first(common.apart[:, c], noise[:, c]) for c in columns]
    column = min(columns, key=lambda c: 0 if starting[c] else edges[c])
    at, starts = 0 if starting[column] else edges[column], starting[column]
    index = tuple(int(k) for k in np.unravel_index(column, a.series[name].values.shape[1:])) if a.series[name].axes else ()
    return _parting(name, common, noise, at, column, place(a, a.series[name], index), starts)


def _differs_at_first(apart: Float[np.ndarray, " sample"], noise: Float[np.ndarray, " sample"]) -> bool:
    """Whether the first samples lie on one side by more than noise explains."""
    n = max(REFERENCE, int(SHARE * len(apart)))
    early = apart[:n][np.isfinite(apart[:n])]
    if not len(early):
        return False
    middle = float(np.median(early))
    same_side = float(np.mean(np.sign(early) == np.sign(middle)))
    return same_side > 0.9 and abs(middle) > max(MATERIAL, CERTAIN * float(noise[0]) / np.sqrt(len(early))) and abs(float(early[0])) > MATERIAL / 2


def _parting(
    name: str, common: _Common, noise: Float[np.ndarray, "sample place"], at: int, column: int, where: Where, starts: bool
) -> Parting:
    same = np.all((common.a == common.b) | (np.isnan(common.a) & np.isnan(common.b)), axis=1)
    equal = int(np.argmin(same)) if not same.all() else len(same)
    until = int(common.steps[equal - 1]) if equal else None
    if at >= len(common.steps):
        return Parting(name, where, None, 0, until, False, 1.0, 0.0)
    after = common.apart[at : at + 5, column]
    lasting = float(np.median(after[np.isfinite(after)])) if np.isfinite(after).any() else np.nan
    height = max((float(after[0]), lasting), key=lambda apart: abs(np.nan_to_num(apart, posinf=0.0)))
    positive = bool(np.all(common.a[:, column] > 0) and np.all(common.b[:, column] > 0))
    ratio = float(np.exp(height)) if positive else float("nan")
    within = int(common.steps[at] - common.steps[at - 1]) if at else 0
    sigma = float(abs(common.apart[at, column]) / noise[at, column])
    return Parting(name, where, int(common.steps[at]), within, until, starts, ratio, sigma)


def partings(a: Run, b: Run) -> list[Parting]:
    """Every series that both runs have: those that part after a common start first, by step, then those that differ always.

    Of those that part at one step the loss comes first, as it is computed first.
    """
    found = list(_each(a, b))
    return sorted(found, key=lambda p: (p.step is None, p.from_start, p.step or 0, p.series != "loss", p.within, -p.sigma))


def _each(a: Run, b: Run) -> Iterator[Parting]:
    for name in a.series:
        if name in b.series and name not in LEFT_OUT and (parting := part(a, b, name)) is not None:
            yield parting
