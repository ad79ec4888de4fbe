"""What the tab has to know of a run before it draws anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from stabilitylens.dashboard._recording import Snapshot, Track
from stabilitylens.dashboard._summary import axes_shown
from stabilitylens.reports._words import without_formula
from stabilitylens.writers._layout import group_of

#: first in the list of metrics
FIRST = ("max_attn_logit", "attn_entropy_ratio", "resid_rms", "resid_grad_norm", "update_rms")


def about(name: str, snapshot: Snapshot) -> dict[str, Any]:
    """Series, steps, recipe, coverage and events, as plain data."""
    header = snapshot.header
    ends = [int(step) for track in snapshot.tracks.values() if len(track.steps) for step in track.steps[[0, -1]]]
    return {
        "run": name, "version": snapshot.version,
        "first": min(ends, default=0), "last": max(ends, default=0),
        "maps": [_series(track, snapshot) for track in sorted(_maps(snapshot), key=_rank)],
        "curves": [_series(track, snapshot) for track in snapshot.tracks.values() if not track.axes],
        "coverage": str(header.coverage), "sampling": {str(k): str(v) for k, v in header.sampling.items()},
        "recipe": _known(header.recipe.to_dict() if header.recipe else {}), "versions": header.versions,
        "events": [{"step": e.step, "kind": e.kind, "text": e.text} for e in snapshot.events[-500:]],
        "superseded": [list(span) for span in snapshot.superseded],
    }


def _maps(snapshot: Snapshot) -> list[Track]:
    return [track for track in snapshot.tracks.values() if track.axes and int(np.prod(track.shape)) > 0]


def _rank(track: Track) -> int:
    metric = track.name.partition("/")[0]
    return FIRST.index(metric) if metric in FIRST else len(FIRST)


def _series(track: Track, snapshot: Snapshot) -> dict[str, Any]:
    metric = track.name.partition("/")[0]
    meta = snapshot.header.metrics.get(metric)
    return {
        "name": track.name, "metric": metric, "axes": axes_shown(snapshot, track), "shape": list(track.shape),
        "unit": meta.unit if meta else "", "definition": without_formula(meta.definition) if meta else "",
        "worse": snapshot.worse(track.name), "group": group_of(metric), "samples": len(track.steps),
    }


def _known(fields: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in fields.items() if value is not None and key != "notes"}
