"""CSV, a row a value."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import TextIOWrapper
from typing import Any, BinaryIO

import numpy as np

from stabilitylens.run import Run, Series
from stabilitylens.writers._exporter import axes_of, chunks, exporter


@exporter("csv")
def write(run: Run, stream: BinaryIO) -> None:
    """A long table: ``step``, ``series``, a column for each axis (from 0, empty where a series has none), ``value``.

    ``nan`` in a scalar series is what was logged; in an array it says that nothing was observed there.
    """
    axes = axes_of(run)
    text = TextIOWrapper(stream, encoding="utf-8", newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", "series", *axes, "value"])
    for series in run.series.values():
        for part in chunks(series):
            table.writerows(_rows(part, axes))
    text.flush()
    text.detach()


def _rows(part: Series, axes: list[str]) -> Iterator[tuple[Any, ...]]:
    where = np.indices(part.values.shape).reshape(part.values.ndim, -1)
    columns: dict[str, list[Any]] = {axis: where[1 + i].tolist() for i, axis in enumerate(part.axes)}
    values = part.values.ravel().tolist()
    empty = [""] * len(values)
    steps = part.steps[where[0]].tolist()
    return zip(steps, [part.name] * len(values), *(columns.get(axis, empty) for axis in axes), values, strict=True)
