"""What a click on a cell asks for: its series, its neighbours, and the rules that judge it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stabilitylens.dashboard._curves import curve
from stabilitylens.dashboard._recording import Snapshot, Track
from stabilitylens.dashboard._summary import axes_shown, layers_of
from stabilitylens.rules import RULES


def cell(
    snapshot: Snapshot, track: Track, row: int, inner: int | None, around: tuple[int, int], span: tuple[int, int], columns: int
) -> dict[str, Any]:
    """One entry of a series over the steps of a span.

    ``inner`` counts the inner axes as if they were one; None is the worst of the steps in ``around``.
    """
    begin, end = np.searchsorted(track.steps, [around[0], around[1] + 1]).tolist()
    begin, end = (begin, end) if begin < end else (max(0, begin - 1), max(1, begin))
    count = int(np.prod(track.shape[1:]))
    parts = [chunk[:, row].reshape(len(chunk), count) for chunk in track.chunks(begin, end)]
    near = np.concatenate(parts) if parts else np.full((0, count), np.nan)
    inner = _worst(near, snapshot.worse(track.name))[1] if inner is None else inner
    at, _ = _worst(near[:, inner:inner + 1], snapshot.worse(track.name))
    lines = [{"what": "own", "row": row, "inner": inner}, *_neighbours(track, row, inner)]
    return {
        "row": row, "inner": inner if count > 1 else None, "step": int(track.steps[begin + at]),
        "value": _number(near[at, inner]), "axes": axes_shown(snapshot, track),
        "label": _label(snapshot, track, row), "layer": _layer(snapshot, track, row),
        "lines": [line | curve(track.steps, _values(track, line["row"], line["inner"]), *span, columns) for line in lines],
        "rules": _rules(track),
    }


def _worst(values: np.ndarray, worse: str) -> tuple[int, int]:
    """Indices of what is not finite if anything is, else of the worrying end."""
    sign = 1.0 if worse == "high" else -1.0
    rank = np.where(np.isnan(values), -np.inf, np.where(np.isinf(values), np.inf, sign * values))
    row, column = np.unravel_index(int(np.argmax(rank)), rank.shape)
    return int(row), int(column)


def _values(track: Track, row: int, inner: int) -> np.ndarray:
    inside = np.unravel_index(inner, track.shape[1:]) if len(track.shape) > 1 else ()
    return track.at(row, *(int(i) for i in inside))


def _neighbours(track: Track, row: int, inner: int) -> list[dict[str, Any]]:
    """The same entry one row up and down, and the entries beside it."""
    rows = [i for i in (row - 1, row + 1) if 0 <= i < track.shape[0]]
    beside = [i for i in (inner - 1, inner + 1) if 0 <= i < int(np.prod(track.shape[1:]))]
    return [{"what": "row", "row": i, "inner": inner} for i in rows] + [{"what": "inner", "row": row, "inner": i} for i in beside]


def _number(value: Any) -> float | str | None:
    number = float(value)
    return number if np.isfinite(number) else None if np.isnan(number) else str(number)


def _label(snapshot: Snapshot, track: Track, row: int) -> str:
    names = snapshot.labels(track.axes[0])
    return names[row] if len(names) == track.shape[0] else ""


def _layer(snapshot: Snapshot, track: Track, row: int) -> int | None:
    layers = layers_of(snapshot, track)
    return layers[row] if layers else None


def _rules(track: Track) -> list[dict[str, str]]:
    """Those that need the metric, with what each flags."""
    metric = track.name.partition("/")[0]
    return [
        {"code": rule.code, "name": rule.name, "summary": rule.summary, "flags": rule.section("What it flags")}
        for rule in RULES if any(need.partition("/")[0] == metric for need in rule.needs)
    ]
