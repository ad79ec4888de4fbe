"""Reads the numbers of a wide table column by column: by pyarrow where that pays, else by Python's own parser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stabilitylens.readers._csv import Layout, rows
from stabilitylens.readers._numbers import number
from stabilitylens.readers._source import head, is_plain
from stabilitylens.readers._table import Block, Cells

#: a smaller file is read before pyarrow is imported; bytes and rows that are read at once
WORTH, BYTES, AT_ONCE = 1 << 20, 1 << 19, 4096


def blocks(path: Path, layout: Layout, skipped: list[int]) -> Iterator[Block]:
    """The rows of a table, many at a time; the number of lines that do not fit is added to ``skipped``."""
    if path.stat().st_size >= WORTH and layout.named and layout.exact and layout.separator != ";" and is_plain(path) and b"\n#" not in head(path):
        done = 0
        try:
            for block in _by_arrow(path, layout, skipped):
                done += block.rows
                yield block
            return
        except (ImportError, ValueError):  # ArrowInvalid is a ValueError: from here on a cell is no plain number
            skipped[0] = 0
            yield from _by_python(path, layout, skipped, done)
            return
    yield from _by_python(path, layout, skipped, 0)


def _by_arrow(path: Path, layout: Layout, skipped: list[int]) -> Iterator[Block]:
    import pyarrow
    from pyarrow import csv

    def left_out(_: Any) -> str:
        skipped[0] += 1
        return "skip"

    numeric = _numeric(path, layout)
    reader = csv.open_csv(
        path,
        csv.ReadOptions(use_threads=False, block_size=BYTES, column_names=list(layout.names), skip_rows_after_names=1),
        csv.ParseOptions(delimiter=layout.separator, invalid_row_handler=left_out),
        csv.ConvertOptions(null_values=[""], column_types={name: pyarrow.float64() for name in numeric}, include_columns=numeric),
    )
    for batch in reader:
        columns = {}
        for name, column in zip(numeric, batch.columns, strict=True):
            if column.null_count < len(column):
                valid = None if not column.null_count else np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
                values = column.drop_null() if column.null_count else column
                columns[name] = Cells(valid, values.to_numpy(zero_copy_only=False))
        yield Block(batch.num_rows, columns)


def _numeric(path: Path, layout: Layout) -> list[str]:
    """The columns whose cells are numbers as far as the head of the file shows."""
    text: dict[str, bool] = {}
    for row in islice(rows(path, layout, [0]), AT_ONCE):
        for name, cell in zip(layout.names, row, strict=False):
            if cell and not text.get(name) and number(cell) is None:
                text[name] = True
    return [name for name in layout.names if not text.get(name)]


def _by_python(path: Path, layout: Layout, skipped: list[int], done: int) -> Iterator[Block]:
    found = islice(rows(path, layout, skipped), done, None)
    width = len(layout.names)
    while some := list(islice(found, AT_ONCE)):
        whole = some if all(len(row) == width for row in some) else [row + [""] * (width - len(row)) for row in some]
        columns = {name: cells for name, texts in zip(layout.names, zip(*whole, strict=True), strict=True) if (cells := _cells(texts)) is not None}
        yield Block(len(some), columns)


def _cells(texts: Sequence[str]) -> Cells | None:
    """The numbers of some cells, and where they stand unless in all; None where there are none."""
    try:
        return Cells(None, np.array(list(map(float, texts))))
    except ValueError:
        pass
    found = [(i, value) for i, text in enumerate(texts) if text and (value := number(text)) is not None]
    if not found:
        return None
    places, values = zip(*found, strict=True)
    return Cells(np.array(places, dtype=np.int64), np.array(values, dtype=np.float64))
