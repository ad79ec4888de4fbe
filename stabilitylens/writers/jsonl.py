"""JSON lines, an object a step."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from stabilitylens.run import Run
from stabilitylens.writers._exporter import exporter

_WORDS = {math.inf: "Infinity", -math.inf: "-Infinity"}


@exporter("jsonl")
def write(run: Run, stream: BinaryIO) -> None:
    """An object a step: ``step``, then each series that has that step by name, arrays as nested lists.

    JSON has no word for what is not finite: it is one of the strings ``NaN``, ``Infinity`` and ``-Infinity``, and null in
    an array where nothing was observed.
    """
    for row in _rows(run):
        stream.write(json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n")


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    every = [series.steps for series in run.series.values()]
    at = dict.fromkeys(run.series, 0)
    for step in np.unique(np.concatenate(every)).tolist() if every else ():
        row: dict[str, Any] = {"step": step}
        for name, series in run.series.items():
            if at[name] < len(series) and series.steps[at[name]] == step:
                row[name] = _plain(series.values[at[name]].tolist(), bool(series.axes))
                at[name] += 1
        yield row


def _plain(value: Any, array: bool) -> Any:
    if isinstance(value, list):
        return [_plain(item, array) for item in value]
    if math.isnan(value):
        return None if array else "NaN"
    return _WORDS.get(value, value)
