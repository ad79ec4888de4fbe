"""What an exporter is: it writes a whole run into one file of a format that other tools read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np

from stabilitylens.registry import Registry
from stabilitylens.run import Run, Series

#: values of a series that are turned into rows at a time, so that memory stays bounded
CHUNK = 250_000


@runtime_checkable
class Export(Protocol):
    """Writes a run to a binary stream."""

    def __call__(self, run: Run, stream: BinaryIO, /) -> None:
        """Write all of it."""


EXPORTERS: Registry[Export] = Registry("stabilitylens.writers")


def exporter(name: str) -> Callable[[Export], Export]:
    """Register an exporter under the name of its format, as ``--to`` takes it."""
    return EXPORTERS.named(name)


def axes_of(run: Run) -> list[str]:
    """Every axis of the run's series, in order of appearance."""
    return list(dict.fromkeys(axis for series in run.series.values() for axis in series.axes))


def chunks(series: Series) -> Iterator[Series]:
    """The series in pieces of at most some 250,000 values."""
    rows = max(1, CHUNK // max(1, int(np.prod(series.values.shape[1:]))))
    for first in range(0, len(series), rows):
        part = slice(first, first + rows)
        yield Series(series.name, series.steps[part], np.asarray(series.values[part]), series.axes, series.labels)


def write_to(run: Run, to: str, path: Path) -> None:
    """Write a run to a file, which stands there in full or not at all.

    Raises:
        stabilitylens.errors.BadInput: a library that the format needs is not installed.
        OSError: the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.part")
    try:
        with partial.open("wb") as stream:
            EXPORTERS[to](run, stream)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
