"""Reads tables in text: CSV, TSV and their like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stabilitylens.readers._csv import Layout, cells, is_time, layout_of
from stabilitylens.readers._csv_columns import blocks
from stabilitylens.readers._names import ROW_TYPES, loss_rank, normal, step_rank
from stabilitylens.readers._numbers import number
from stabilitylens.readers._reader import reader
from stabilitylens.readers._rows import runs_from_rows
from stabilitylens.readers._unnamed import behaves
from stabilitylens.run import Run

#: columns of a long table: the metric's name, its value, and the run
_METRIC = frozenset(("metric", "metric name", "tag", "name", "key", "variable", "series", "metric key"))
_VALUE = frozenset(("value", "values", "metric value", "scalar"))
_RUN = frozenset(("run", "run id", "run uuid", "run name", "runid", "experiment", "experiment name", "exp", "exp name", "run key", "trial", "trial id"))
_WANDB = re.compile(r"(?P<run>.+) - (?P<key>.+?)(?P<end>__MIN|__MAX)?")
#: so many rows of a table without names show how its columns behave
LOOKED_AT = 20_000
#: more runs than this in one table are no runs
MANY = 256


@reader(name="csv_table", sniff=lambda path: layout.sure if (layout := layout_of(path)) is not None else 0.0, most=0.75)
def read(path: Path) -> list[Run]:
    """Tables in text: CSV, TSV, with semicolons or bars, with or without a header.

    Wide tables have a column a metric, as Lightning's ``metrics.csv``, Keras's ``CSVLogger`` and most loops of one's own;
    a cell that is empty was not logged. Long tables have the metric's name in one column and its value in another, as
    MLflow's and TensorBoard's exports, or training and evaluation rows told apart by a ``type`` column. W&B's exports
    have a column a run. A table with one column of numbers beside steps and times is a loss; of several columns without
    any name, the one that behaves as a loss does: it has noise, and falls.
    """
    layout = layout_of(path)
    assert layout is not None
    if runs := _wandb_runs(layout):
        return [_named(run, name) for name, keys in runs.items() for run in _read(path, layout, keep=keys)]
    run_column = next((name for name in layout.names if normal(name) in _RUN), None)
    if run_column is not None:
        names = _values(path, layout, run_column)
        if 1 < len(names) <= MANY:
            return [_named(run, name) for name in names for run in _read(path, layout, only=(run_column, name))]
    return _read(path, layout)


def _named(run: Run, name: str) -> Run:
    run.path = f"{run.path}#{name}"
    return run


def _values(path: Path, layout: Layout, column: str) -> list[str]:
    found: dict[str, None] = {}
    for row in cells(path, layout, [0]):
        if len(found) <= MANY:
            found.setdefault(row.get(column, ""))
    return list(found)


def _wandb_runs(layout: Layout) -> dict[str, dict[str, str]]:
    """The columns of each run of a W&B export, by their key without the run's name; {} for other tables."""
    runs: dict[str, dict[str, str]] = {}
    for name in layout.names:
        found = _WANDB.fullmatch(name)
        if found is not None and found["end"] is None:
            runs.setdefault(found["run"], {})[name] = found["key"]
        elif found is None and step_rank(name) is None and not is_time(name):
            return {}
    counters = {name: name for name in layout.names if step_rank(name) is not None}
    return {run: counters | keys for run, keys in runs.items()}


def _read(path: Path, layout: Layout, keep: dict[str, str] | None = None, only: tuple[str, str] | None = None) -> list[Run]:
    skipped, notes = [0], list[str]()

    def rows() -> Iterator[dict[str, str]]:
        for row in cells(path, layout, skipped):
            if only is not None and row.get(only[0], "") != only[1]:
                continue
            if keep is None:
                yield row
            elif any(name in row and step_rank(name) is None for name in keep):
                yield {key: row[name] for name, key in keep.items() if name in row}

    metric = next((name for name in layout.names if normal(name) in _METRIC), None)
    value = next((name for name in layout.names if normal(name) in _VALUE), None)
    if keep is None and metric is not None and value is not None:
        return runs_from_rows(path, "csv_table", _with_note(_pivoted(rows(), metric, value), skipped, notes), notes)
    named = _only_candidate(tuple(keep.values()) if keep is not None else layout.names, path, layout, notes)
    if keep is None and only is None and not any(name.lower() in ROW_TYPES for name in layout.names):
        return runs_from_rows(path, "csv_table", _with_note(blocks(path, layout, skipped), skipped, notes), notes, loss_key=named)
    return runs_from_rows(path, "csv_table", _with_note(rows(), skipped, notes), notes, loss_key=named)


def _with_note(rows: Iterator[Any], skipped: list[int], notes: list[str]) -> Iterator[Any]:
    yield from rows
    if skipped[0]:
        notes.append(f"{skipped[0]} lines have another number of cells than the table and were skipped")


def _pivoted(rows: Iterator[dict[str, str]], metric: str, value: str) -> Iterator[dict[str, str]]:
    for row in rows:
        if metric in row and value in row:
            yield {name: cell for name, cell in row.items() if name not in (metric, value)} | {row[metric]: row[value]}


def _only_candidate(names: tuple[str, ...], path: Path, layout: Layout, notes: list[str]) -> str | None:
    """The one column beside steps and times of a table without a loss, where its name says nothing else; without any names, the one that behaves so."""
    if any(loss_rank(name) for name in names):
        return None
    rest = [name for name in names if step_rank(name) is None and not is_time(name)]
    if layout.named or len(rest) == 1:
        return rest[0] if len(rest) == 1 and (not layout.named or normal(rest[0]) in _VALUE) else None
    begin = list(islice(cells(path, layout, [0]), LOOKED_AT))
    found = behaves({name: np.array([number(row.get(name, "")) or 0.0 for row in begin]) for name in rest})
    if found is not None:
        notes.append(f"no column has a name: {found} was taken for the loss, as it has noise and falls; loss= (--loss) takes another")
    return found
