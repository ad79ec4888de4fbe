"""Finds the history in a JSON document: which of its lists and maps are series, and which their steps."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from stabilitylens.readers._json import numbers
from stabilitylens.readers._json_large import Records
from stabilitylens.readers._names import step_rank
from stabilitylens.readers._numbers import number
from stabilitylens.readers._table import Block, Cells

#: nesting beyond this holds no history; a series has at least this many points
DEEP, FEW = 8, 2
#: shorter lists are settings (betas, a range) unless they are called a loss. *Heuristic*.
SETTING = 3
#: rows at the head that tell the fields of a history; entries of its series that are read at once
LOOKED_AT, AT_ONCE = 50, 1 << 16
_COUNTERS = ("step", "epoch", "iteration", "iter", "round", "timestep")


@dataclass(frozen=True)
class History:
    """What a document tells of a training: its rows, which may be gone through once, how many they are, and the fields of the first ones."""

    rows: Iterable[dict[str, Any] | Block]
    length: int
    keys: frozenset[str]


NOTHING = History((), 0, frozenset())


def history(found: Any) -> History:
    """The longest history in a document.

    A history is a list of records, a map from steps to records, or lists and maps of numbers side by side.
    """
    return max(_histories(found, DEEP), key=_weight, default=NOTHING)


def _weight(found: History) -> tuple[bool, int]:
    return any("loss" in key.lower() for key in found.keys), found.length


def _of_records(rows: Iterable[dict[str, Any]], length: int) -> History:
    return History(rows, length, frozenset(key for row in islice(rows, LOOKED_AT) for key in row))


def _histories(found: Any, deep: int) -> Iterator[History]:
    if deep == 0:
        return
    if isinstance(found, Records):
        yield _of_records(found, sys.maxsize)
        return
    if isinstance(found, list):
        records = [item for item in found if isinstance(item, Mapping)]
        if len(records) >= FEW:
            yield _of_records([dict(record) for record in records], len(records))
        elif deep == DEEP and len(found) >= FEW and (_are_points(found) or numbers(found)):
            yield _columns({"value": found})
        return
    if not isinstance(found, Mapping):
        return
    if (by_step := _by_step(found)) is not None:
        yield _of_records(by_step, len(by_step))
        return
    series = dict(_series(found, "", DEEP))
    if series:
        yield _columns(series)
    for inner in found.values():
        yield from _histories(inner, deep - 1)


def _step_of(key: str) -> float | None:
    """The step that a key spells, as ``100``, ``step_100`` and ``epoch 3``."""
    text = key.lower()
    for name in _COUNTERS:
        text = text.removeprefix(name)
    return number(text.strip(" _-:#"))


def _by_step(found: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Rows of a map from steps to records or numbers; None for another map."""
    if len(found) < FEW:
        return None
    rows = []
    for key, value in found.items():
        step = _step_of(str(key))
        if step is None:
            return None
        if isinstance(value, Mapping):
            rows.append({"step": step} | dict(value))
        elif isinstance(value, float | int | str):
            rows.append({"step": step, "value": value})
    return rows if len(rows) == len(found) else None


def _series(found: Mapping[str, Any], prefix: str, deep: int) -> Iterator[tuple[str, Any]]:
    """Lists of numbers, lists of points and maps from steps to numbers, by the path of their keys."""
    for key, value in found.items():
        if isinstance(value, list | np.ndarray) and len(value) >= (FEW if "loss" in f"{key}".lower() else SETTING) and (numbers(value) or _are_points(value)):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping) and deep:
            by_step = _by_step(value)
            if by_step is None:
                yield from _series(value, f"{prefix}{key}/", deep - 1)
            elif all("value" in row and len(row) == 2 for row in by_step):
                yield f"{prefix}{key}", [[row["step"], row["value"]] for row in by_step]


def _are_points(value: Sequence[Any] | np.ndarray) -> bool:
    """Whether a list holds pairs of step and value, or triples of time, step and value."""
    return isinstance(value, list) and len(value) >= FEW and all(isinstance(item, list) and len(item) in (2, 3) and numbers(item) for item in value)


def _columns(series: Mapping[str, Any]) -> History:
    """Series side by side; those of points have their own steps and come after each other."""
    side_by_side = {key: value for key, value in series.items() if not _are_points(value)}
    points = {key: value for key, value in series.items() if key not in side_by_side}
    counters = {name: key for key in side_by_side if step_rank(name := key.rpartition("/")[2]) is not None and name not in side_by_side}
    named = side_by_side | {name: side_by_side[key] for name, key in counters.items()}
    length = max(map(len, side_by_side.values()), default=0) + sum(map(len, points.values()))
    return History(_blocks(named, points), length, frozenset((*named, *points, *(["step"] if points else []))))


def _blocks(side_by_side: Mapping[str, Any], points: Mapping[str, Any]) -> Iterator[Block]:
    for begin in range(0, max(map(len, side_by_side.values()), default=0), AT_ONCE):
        some = {key: value[begin:begin + AT_ONCE] for key, value in side_by_side.items() if begin < len(value)}
        found = {key: cells for key, value in some.items() if (cells := _cells(value)) is not None}
        yield Block(max(map(len, some.values())), found)
    for key, value in points.items():
        for begin in range(0, len(value), AT_ONCE):
            some = {"step": [point[-2] for point in value[begin:begin + AT_ONCE]], key: [point[-1] for point in value[begin:begin + AT_ONCE]]}
            yield Block(len(some["step"]), {name: cells for name, one in some.items() if (cells := _cells(one)) is not None})


def _cells(values: Any) -> Cells | None:
    """The numbers of a series, whether all entries are some or not; None where none is."""
    try:
        return Cells(None, values if isinstance(values, np.ndarray) else np.array(array("d", values)))
    except (TypeError, OverflowError):
        pass
    found = [(i, read) for i, value in enumerate(values) if (read := _number(value)) is not None]
    if not found:
        return None
    places, numbers_ = zip(*found, strict=True)
    return Cells(np.array(places, dtype=np.int64), np.array(numbers_, dtype=np.float64))


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return number(value)
    try:
        return None if value is None else float(value)
    except OverflowError:  # an integer beyond float64
        return float("inf") if value > 0 else float("-inf")
