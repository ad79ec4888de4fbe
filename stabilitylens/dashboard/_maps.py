"""Heat maps at the resolution of the screen: of every column of pixels the least and the largest value."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.dashboard._recording import Snapshot, Track
from stabilitylens.dashboard._summary import Summaries, Summary, axes_shown, extremes, layers_of

#: no screen has more columns
COLUMNS = 4096


def packed(values: np.ndarray) -> str:
    """Numbers in base64, little-endian, for JSON has no word for what is not finite."""
    return b64encode(values.tobytes()).decode()


def bins(steps: Int[np.ndarray, " step"], first: int, last: int, columns: int) -> Int[np.ndarray, " edge"]:
    """Indices where columns begin, and the end: one a sample, or equal ranges of steps where that is too many.

    Both ends of the range of steps are inclusive.
    """
    low, high = np.searchsorted(steps, [first, max(first, last + 1)]).tolist()
    if high - low <= columns:
        return np.arange(low, high + 1)
    edges = first + (last + 1 - first) * np.arange(columns, dtype=np.float64) / columns
    begins = np.unique(low + np.searchsorted(steps[low:high], np.ceil(edges)))
    return np.append(begins[begins < high], high)


def draw(
    summaries: Summaries, run: str, snapshot: Snapshot, track: Track, first: int, last: int, columns: int, row: int | None
) -> dict[str, Any]:
    """A map as plain data; arrays are packed float32 (row, column), steps packed float64.

    With a row, its inner axes are the rows of the map.
    """
    whole = summaries.of(run, snapshot, track) if row is None else _inner(track, row, first, last)
    edges = bins(whole.steps, first, last, min(columns, COLUMNS))
    low, high, bad = _reduced(whole, edges)
    ends = whole.steps[edges[:-1]], whole.steps[edges[1:] - 1]
    axes = axes_shown(snapshot, track)
    names = snapshot.labels(track.axes[0 if row is None else min(1, len(track.axes) - 1)])
    return {
        "rows": low.shape[1], "columns": low.shape[0], "labels": list(names) if len(names) == low.shape[1] else [],
        "axis": axes[0] if row is None or len(axes) == 1 else " ".join(axes[1:]),
        "layers": layers_of(snapshot, track) if row is None else [],
        "first": packed(ends[0].astype("<f8")), "last": packed(ends[1].astype("<f8")),
        "low": packed(low.T.astype("<f4")), "high": packed(high.T.astype("<f4")), "bad": packed(bad.T.astype("u1")),
        "samples": int(edges[-1] - edges[0]) if len(edges) else 0, "worse": snapshot.worse(track.name),
    } | _range(high if snapshot.worse(track.name) == "high" else low)


def _range(shown: np.ndarray) -> dict[str, float | None]:
    """Ends of what is drawn, the least of it that is positive, and which share that is, for a logarithmic scale."""
    finite = shown[np.isfinite(shown)]
    positive = finite[finite > 0]
    return {
        "least": float(finite.min()) if finite.size else None, "largest": float(finite.max()) if finite.size else None,
        "floor": float(positive.min()) if positive.size else None, "positive": positive.size / max(1, finite.size),
    }


def _reduced(whole: Summary, edges: Int[np.ndarray, " edge"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    begins, end = edges[:-1], int(edges[-1])
    if len(begins) == end - int(edges[0]):
        some = slice(int(edges[0]), end)
        return whole.low[some], whole.high[some], whole.bad[some]
    return (
        np.fmin.reduceat(whole.low[:end], begins, axis=0), np.fmax.reduceat(whole.high[:end], begins, axis=0),
        np.logical_or.reduceat(whole.bad[:end], begins, axis=0),
    )


def _inner(track: Track, row: int, first: int, last: int) -> Summary:
    """One row's inner entries as rows, of the samples in a range alone."""
    begin, end = np.searchsorted(track.steps, [first, max(first, last + 1)]).tolist()
    parts = [chunk[:, row].reshape(len(chunk), -1) for chunk in track.chunks(begin, end)]
    values: Float[np.ndarray, "step row"] = np.concatenate(parts) if parts else np.zeros((0, 1), dtype=np.float32)
    low, high, bad = extremes(values[:, :, None])
    return Summary(track.steps[begin:end], low, high, bad)
