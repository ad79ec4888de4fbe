"""Reads the files in which MLflow keeps a run's metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from stabilitylens.readers._names import loss_rank
from stabilitylens.readers._reader import reader
from stabilitylens.readers._rows import runs_from_rows
from stabilitylens.readers._source import byte_lines, head
from stabilitylens.run import Run

#: milliseconds since 1970, the value, and in all but the oldest the step
_LINE = re.compile(rb"(\d{12,14}) (\S+)(?: (-?\d+))?")
_VALUE = re.compile(rb"[-+]?[\d.]+(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf(?:inity)?", re.IGNORECASE)


def _is_metric(path: Path) -> bool:
    lines = [line for line in head(path).split(b"\n") if line.strip()]
    return bool(lines) and all(_parsed(line) is not None for line in lines[:20])


def _parsed(line: bytes) -> tuple[float, int | None] | None:
    found = _LINE.fullmatch(line.strip())
    if found is None or not _VALUE.fullmatch(found[2]):
        return None
    return float(found[2]), int(found[3]) if found[3] is not None else None


def files_of(path: Path) -> dict[str, Path]:
    """The metric files at a path, by the metric's name: a run's folder, its ``metrics`` folder, or one file."""
    if path.is_file():
        return {path.name: path} if _is_metric(path) else {}
    folder = path / "metrics" if (path / "meta.yaml").is_file() and (path / "metrics").is_dir() else path
    if folder.name != "metrics":
        return {}
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and _is_metric(file)]
    return {file.relative_to(folder).as_posix(): file for file in files}


def _rows(files: dict[str, Path], skipped: list[int]) -> Iterator[dict[str, float]]:
    for name, path in files.items():
        for i, line in enumerate(byte_lines(path)):
            found = _parsed(line)
            if found is None:
                skipped[0] += 1
            else:
                yield {"step": found[1] if found[1] is not None else i, name: found[0]}


@reader(name="mlflow_metrics", sniff=lambda path: 0.92 if files_of(path) else 0.0, most=0.92)
def read(path: Path) -> list[Run]:
    """MLflow's files: a run's folder, its ``metrics`` folder, or one metric's file.

    A line holds milliseconds since 1970, the value, and the step. Give the folder ``mlruns`` to read all runs. Metrics that
    MLflow keeps in a database are read from its export to CSV.
    """
    files, skipped, notes = files_of(path), [0], list[str]()

    def rows() -> Iterator[dict[str, float]]:
        yield from _rows(files, skipped)
        if skipped[0]:
            notes.append(f"{skipped[0]} lines are no metrics and were skipped")

    only = next(iter(files)) if len(files) == 1 and not loss_rank(next(iter(files))) else None
    return runs_from_rows(path, "mlflow_metrics", rows(), notes, loss_key=only)
