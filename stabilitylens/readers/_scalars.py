"""The scalars of somebody else's event files, over all files of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from tensorboard.compat.proto import event_pb2

from stabilitylens.readers._events import EventFile, read_events
from stabilitylens.readers._sessions import damage

#: more than the seconds since 1970: what a file counts before the time within it
_FILE = 1e11


@dataclass(frozen=True)
class Track:
    """A tag over all files.

    Attributes:
        order: rises with the file, and within it with the time.
    """

    order: Float[np.ndarray, " point"]
    steps: Int[np.ndarray, " point"]
    values: Float[np.ndarray, " point"]


@dataclass
class Scalars:
    """All tags, with the order from which on, and the step at which, a file says that it goes on with the run."""

    tracks: dict[str, Track] = field(default_factory=dict)
    restarts: list[tuple[float, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def said(self, order: float) -> int | None:
        """The step at which the file of a point says that it goes on."""
        return next((step for begin, step in self.restarts if begin <= order < begin + _FILE), None)


def read_scalars(files: list[tuple[str, Path]]) -> Scalars:
    """Read event files.

    Args:
        files: what is put before their tags, and their paths, in the order in which they were written.
    """
    out, parts = Scalars(), defaultdict[str, list[Track]](list)
    for number, (prefix, path) in enumerate(files):
        file = read_events(path)
        out.notes += damage(path, file)
        for tag, steps, walls, values in _points(file):
            parts[prefix + tag].append(Track(number * _FILE + np.nan_to_num(walls), steps, values))
        restart = file.restart()
        if restart is not None:
            out.restarts.append((number * _FILE, restart))
    out.tracks = {tag: _joined(some) for tag, some in parts.items()}
    return out


def _points(file: EventFile) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    for tag, points in file.scalars.items():
        yield tag.tag, points.steps, points.walls, points.values
    rest: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for other in file.others:
        for value in other.event.summary.value:
            number = _number(value)
            if number is not None:
                rest[value.tag].append((other.event.step, other.event.wall_time, number))
    for name, some in rest.items():
        steps, walls, values = zip(*some, strict=True)
        yield name, np.array(steps, dtype=np.int64), np.array(walls), np.array(values)


def _number(value: event_pb2.Summary.Value) -> float | None:
    """A scalar that shares its event with something else, or is of another type than float32."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.tensor.string_val:
        return None
    from tensorboard.util.tensor_util import make_ndarray  # slow to import, and hardly ever needed

    try:
        found = make_ndarray(value.tensor)
    except (TypeError, ValueError):
        return None
    return float(found.item()) if found.size == 1 and found.dtype.kind in "fiub" else None


def _joined(parts: list[Track]) -> Track:
    whole = Track(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("order", "steps", "values")))
    by = np.argsort(whole.order, kind="stable")
    return Track(whole.order[by], whole.steps[by], whole.values[by])
