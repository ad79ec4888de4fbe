"""A comparison in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stabilitylens.reports._words import number, sentence, short_names

if TYPE_CHECKING:
    from stabilitylens.comparison._comparison import Comparison, Pair
    from stabilitylens.comparison._ratios import Ratios

#: partings, tables and layers that are printed; all of them are in the JSON
PARTINGS, TABLES, LAYERS = 12, 6, 12


def write_text(found: Comparison, stream: TextIO) -> None:
    """Colour where the stream is a terminal, 80 columns where it is none."""
    console = Console(file=stream, highlight=False, emoji=False, markup=False)
    for part in _parts(found, short_names([run.path for run in found.runs])):
        console.print(part)


def _parts(found: Comparison, names: Sequence[str]) -> Iterable[RenderableType]:
    yield Rule(Text(" | ".join(names), style="bold"), align="left")
    yield Text(sentence(found.headline), style="bold")
    if found.shared:
        yield _title("What the failed runs share")
        yield from (Text(str(row)) for row in found.shared[:PARTINGS])
    if found.neighbours:
        yield _title("Nearest healthy run")
        yield from (Text(f"{names[i]}: {names[j]}") for i, j in found.neighbours.items())
    if found.differences:
        yield _title("Different in the headers")
        yield _table(["trait", *names], [[d.trait, *("-" if v is None else str(v) for v in d.values)] for d in found.differences])
    for pair in found.pairs:
        yield from _pair(pair, names)
    yield Text()


def _pair(pair: Pair, names: Sequence[str]) -> Iterable[RenderableType]:
    yield _title(f"Where {names[pair.b]} parts from {names[pair.a]}")
    if not pair.partings:
        yield Text("No series and step is in both.")
    rows = [p for p in pair.partings if p.step is not None]
    yield from (Text(str(parting)) for parting in rows[:PARTINGS])
    if len(rows) > PARTINGS:
        yield Text(f"and {len(rows) - PARTINGS} more, all of them in --format json", style="dim")
    if pair.partings and not rows:
        yield Text(f"None of {len(pair.partings)} series parts beyond noise.")
    for table in pair.ratios[:TABLES]:
        shown = _farthest(table)
        yield _title(f"{table.series}: {names[pair.b]} over {names[pair.a]}, steps {table.steps[0]} to {table.steps[1]}")
        yield _table([table.axis, "ratio"], [[table.labels[i], number(table.ratios[i])] for i in shown])


def _farthest(table: Ratios) -> list[int]:
    """The entries that differ most, in their own order."""
    order = sorted(range(len(table.ratios)), key=lambda i: -abs(np.log(table.ratios[i])) if table.ratios[i] > 0 else 0.0)
    return sorted(order[:LAYERS])


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
