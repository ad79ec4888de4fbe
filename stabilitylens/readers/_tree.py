"""Finds the history in a JSON document: which of its lists and maps are series, and which their steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stabilitylens.readers._json import numbers
from stabilitylens.readers._names import step_rank
from stabilitylens.readers._numbers import number

#: nesting beyond this holds no history; a series has at least this many points
DEEP, FEW = 8, 2
#: shorter lists are settings (betas, a range) unless they are called a loss. *Heuristic*.
SETTING = 3
_COUNTERS = ("step", "epoch", "iteration", "iter", "round", "timestep")


def history(found: Any) -> list[dict[str, Any]]:
    """The rows of the longest history in a document; none where it holds no history.

    A history is a list of records, a map from steps to records, or lists and maps of numbers side by side.
    """
    candidates = list(_histories(found, DEEP))
    return max(candidates, key=_weight, default=[])


def _weight(rows: list[dict[str, Any]]) -> tuple[bool, int]:
    return any("loss" in key.lower() for row in rows[:50] for key in row), len(rows)


def _histories(found: Any, deep: int) -> Iterator[list[dict[str, Any]]]:
    if deep == 0:
        return
    if isinstance(found, list):
        records = [item for item in found if isinstance(item, Mapping)]
        if len(records) >= FEW:
            yield [dict(record) for record in records]
        elif deep == DEEP and len(found) >= FEW and (_are_points(found) or numbers(found)):
            yield _columns({"value": found})
        return
    if not isinstance(found, Mapping):
        return
    if (by_step := _by_step(found)) is not None:
        yield by_step
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
        if isinstance(value, list) and len(value) >= (FEW if "loss" in f"{key}".lower() else SETTING) and (numbers(value) or _are_points(value)):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping) and deep:
            by_step = _by_step(value)
            if by_step is None:
                yield from _series(value, f"{prefix}{key}/", deep - 1)
            elif all("value" in row and len(row) == 2 for row in by_step):
                yield f"{prefix}{key}", [[row["step"], row["value"]] for row in by_step]


def _are_points(value: list[Any]) -> bool:
    """Whether a list holds pairs of step and value, or triples of time, step and value."""
    return len(value) >= FEW and all(isinstance(item, list) and len(item) in (2, 3) and numbers(item) for item in value)


def _columns(series: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of series side by side; those of points have their own steps and come after each other."""
    side_by_side = {key: value for key, value in series.items() if not _are_points(value)}
    length = max((len(value) for value in side_by_side.values()), default=0)
    rows = [{key: value[i] for key, value in side_by_side.items() if i < len(value)} for i in range(length)]
    counters = [key for key in side_by_side if step_rank(key.rpartition("/")[2]) is not None]
    for row in rows:
        for key in counters:
            if key in row:
                row.setdefault(key.rpartition("/")[2], row[key])
    for key, value in series.items():
        if key not in side_by_side:
            rows += [{"step": point[-2], key: point[-1]} for point in value]
    return rows
