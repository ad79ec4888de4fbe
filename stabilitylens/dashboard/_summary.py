"""The least and the largest value of each row at each sample: what any zoom of a map is drawn from."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from stabilitylens.dashboard._recording import Snapshot, Track

#: bytes of summaries that are kept; the least recently used go first
KEEP = 1 << 28

Rows = Float[np.ndarray, "step row"]


@dataclass(frozen=True)
class Summary:
    """Over the inner axes of a series.

    Attributes:
        low, high: of what is finite; NaN where nothing is.
        bad: where a value is infinite.
    """

    steps: Int[np.ndarray, " step"]
    low: Rows
    high: Rows
    bad: Bool[np.ndarray, "step row"]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.low.nbytes + self.high.nbytes + self.bad.nbytes

    def plus(self, other: Summary) -> Summary:
        """Both, one after the other."""
        return Summary(*(np.concatenate((getattr(self, f), getattr(other, f))) for f in ("steps", "low", "high", "bad")))


def summarize(track: Track, begin: int = 0) -> Summary:
    """Of the samples from an index on."""
    parts = [extremes(chunk.reshape(len(chunk), track.shape[0], -1)) for chunk in track.chunks(begin)]
    if not parts:
        empty = np.zeros((0, track.shape[0]), dtype=np.float32)
        return Summary(track.steps[begin:], empty, empty, empty.astype(np.bool_))
    low, high, bad = (np.concatenate(some) for some in zip(*parts, strict=True))
    return Summary(track.steps[begin:], low, high, bad)


def extremes(values: Float[np.ndarray, "step row inner"]) -> tuple[Rows, Rows, Bool[np.ndarray, "step row"]]:
    """NaN passes through the plain reductions, so that one look tells whether more care is needed."""
    if not values.shape[2]:
        empty = np.full(values.shape[:2], np.nan, dtype=np.float32)
        return empty, empty, np.zeros(values.shape[:2], dtype=np.bool_)
    low, high = values.min(axis=2), values.max(axis=2)
    if np.isfinite(low).all() and np.isfinite(high).all():
        return low, high, np.zeros(low.shape, dtype=np.bool_)
    finite = np.isfinite(values)
    none = ~finite.any(axis=2)
    low = np.where(none, np.nan, np.where(finite, values, np.inf).min(axis=2))
    high = np.where(none, np.nan, np.where(finite, values, -np.inf).max(axis=2))
    return low.astype(np.float32), high.astype(np.float32), np.isinf(values).any(axis=2)


class Summaries:
    """Keeps summaries, and adds to them as a run grows. Calls come one at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Summary] = OrderedDict()

    def of(self, run: str, snapshot: Snapshot, track: Track) -> Summary:
        """The summary of a series; where its elements were counted as not finite, that is in ``bad`` too."""
        plain = self._plain(run, track)
        counts = snapshot.tracks.get("nonfinite_count/layer")
        layers = layers_of(snapshot, track)
        if counts is None or not layers or max(layers) >= counts.shape[0] or counts.name == track.name:
            return plain
        counted = self._plain(run, counts)
        at = np.searchsorted(counted.steps, plain.steps).clip(max=len(counted.steps) - 1)
        found = (counted.high[at][:, layers] > 0) & (counted.steps[at] == plain.steps)[:, None]
        return Summary(plain.steps, plain.low, plain.high, plain.bad | (found & np.isnan(plain.high)))

    def _plain(self, run: str, track: Track) -> Summary:
        key = run, track.name
        old = self._kept.pop(key, None)
        n = len(old.steps) if old is not None else 0
        grown = old is not None and n <= len(track.steps) and np.array_equal(track.steps[:n], old.steps)
        if old is None or not grown or old.low.shape[1:] != track.shape[:1]:
            new = summarize(track)
        else:
            new = old if n == len(track.steps) else old.plus(summarize(track, n))
        self._kept[key] = new
        while len(self._kept) > 1 and sum(summary.size for summary in self._kept.values()) > KEEP:
            self._kept.popitem(last=False)
        return new


def layers_of(snapshot: Snapshot, track: Track) -> list[int]:
    """The layer of each row; empty where rows are no layers.

    Attention calls are those of the anatomy; where there is none, one a layer if there are as many names of each.
    """
    if not track.axes or not track.shape:
        return []
    if track.axes[0] == "layer":
        return list(range(track.shape[0]))
    if track.axes[0] != "attention":
        return []
    if snapshot.header.anatomy is None:
        one_each = len(snapshot.labels("layer")) == len(snapshot.labels("attention")) == track.shape[0]
        return list(range(track.shape[0])) if one_each else []
    calls = snapshot.header.anatomy.attention_calls
    layers = [call.layer for call in calls if call.layer is not None]
    return layers if len(layers) == len(calls) == track.shape[0] else []


def axes_shown(snapshot: Snapshot, track: Track) -> list[str]:
    """The axes as people call them: attention calls are layers where each layer has one."""
    one_each = bool(track.shape) and layers_of(snapshot, track) == list(range(track.shape[0]))
    return ["layer" if one_each else track.axes[0], *track.axes[1:]] if track.axes else []
