"""From the rows of somebody else's log to runs: what all readers of foreign formats have in common.

A reader turns its format into **rows**, and ``runs_from_rows`` does the rest::

    @reader(name="mine", sniff=lambda path: 0.9 if head(path).startswith(b"MINE") else 0.0)
    def read(path: Path) -> list[Run]:
        "One page on the format, as a docstring"
        return runs_from_rows(path, "mine", rows(lines(path)))

**A row** is a dict from the log's own field names to numbers or to strings that may spell numbers (``"nan"``,
``"n/a"``, ``"85.8G"``, ``"1/547"``, ``"12.5%"``, ``"0.31 (0.35)"``), in the order of the file. Leave names as they are
(``lm loss``, ``train/grad_norm``): the names are known here, not in the readers. A field that is absent was not logged;
``"nan"`` was logged and is NaN. Strings that spell no number are dropped, except that a field called ``type``, ``split``,
``phase``, … whose value is ``val``, ``eval``, ``test``, … puts ``val/`` and so on before the other fields of its row.
Mappings and short lists inside are flattened with ``/``. A row may have a loss, or only evaluation, or only a counter.

**A Mark** between rows says what the text says of the run: ``Mark("run")``, a new run begins (a banner, a new command
line, a new header); any other kind becomes an event of the run at this place, as ``Mark("resume", "loaded step 500")``.

What is decided here, each by name first and then by behaviour, and each said in ``run.notes`` where it was not plain:

- the **loss** (``_loss.py``, ``_names.py``): becomes the series ``loss``; its own name is ``run.loss_key``;
- the **steps** (``_steps.py``): a whole, moving counter on the rows of the loss; else the points are numbered from 0. Rows
  without a step have that of the loss before them;
- **runs, writers, resumes, epochs, duplicates** (``_stretches.py``);
- **names** (``_names.py``): ``grad_norm``, ``lr``, ``loss_scale``, ``tokens``, ``step_time`` and ``epoch`` under every common
  spelling; all other series keep their own;
- steps that were **skipped** become events of kind ``step_skipped``.

Helpers: ``_source.py`` has ``head(path)``, the first 256 KB, and ``lines(path)``, which streams text of any line ending and
encoding in bounded memory; ``_numbers.number(text)`` reads one number. ``sniff`` returns how sure it is: 1 for a
signature, about 0.9 for a structure that one tool writes, 0.6 for a generic structure, below 0.4 for a guess at free
text; 0 is no. The surest reader is asked first, and where it finds nothing the next one is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stabilitylens.errors import BadInput
from stabilitylens.readers._assemble import assemble, our_names, worth_reading
from stabilitylens.readers._frame import UNCOUNTED, Frame
from stabilitylens.readers._large import each
from stabilitylens.readers._loss import choose_loss
from stabilitylens.readers._merge import Session
from stabilitylens.readers._names import step_rank
from stabilitylens.readers._skipped import counts_skips, skipped
from stabilitylens.readers._summaries import BY_EPOCH, summaries
from stabilitylens.readers._table import COLUMNS, Alike, Block, Row, Table, together
from stabilitylens.run import Event, Run

__all__ = ["UNCOUNTED", "Mark", "runs_from_rows"]

#: the kind of an event that is a skipped step
SKIPPED = "step_skipped"
#: rows with the same fields that are added at once
AT_ONCE = 1024


@dataclass(frozen=True)
class Mark:
    """What the log says between two rows: ``run`` begins another run, ``left_out`` is a note, any other kind an event at this place."""

    kind: str
    text: str = ""


@dataclass
class _Part:
    """Rows between two marks that begin a run, the notes among them, and the other marks by the number of the row that follows."""

    table: Table = field(default_factory=Table)
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def runs_from_rows(path: Path, form: str, rows: Iterable[Row | Alike | Block | Mark], notes: Iterable[str] = (), loss_key: str | None = None) -> list[Run]:
    """The runs that rows tell of.

    Args:
        path: where they are from.
        form: the reader's name.
        rows: rows and marks, in the order of the file; may be a generator, and is streamed.
        notes: what the reader skipped; read after the rows, so a list that the generator fills will do.
        loss_key: the field that is the loss where the format leaves no choice; by default it is chosen.

    Raises:
        BadInput: no row has a number other than its counters.
    """
    parts = [part for part in _parts(rows) if any(step_rank(key) is None for key in part.table.columns)]
    if not parts:
        raise BadInput(f"{path} was read as {form}, but holds no number of any run; give a log that has losses in it")
    found = [run for part in parts for run in _runs(path, form, part, loss_key)]
    runs = worth_reading(found)
    if not runs:
        raise BadInput(f"{path} was read as {form}, but has no loss and no series in it; give a log of a training run")
    for i, run in enumerate(runs):
        run.notes = [*notes, *run.notes]
        if len(runs) > 1:
            run.path = f"{path}#{i + 1}"
    return runs


def _parts(rows: Iterable[Row | Alike | Block | Mark]) -> list[_Part]:
    parts = [_Part()]
    alike: list[Row] = []
    for row in together(rows):
        if isinstance(row, Alike | Block):
            parts[-1].table.add_alike(alike)
            parts[-1].table.add_columns(row) if isinstance(row, Alike) else parts[-1].table.add_block(row)
            alike = []
            continue
        if not isinstance(row, Mark):
            if alike and (len(alike) == AT_ONCE or row.keys() != alike[0].keys()):
                parts[-1].table.add_alike(alike)
                alike = []
            alike.append(row)
            continue
        parts[-1].table.add_alike(alike)
        alike = []
        if row.kind == "left_out":
            parts[-1].notes.append(row.text)
        elif row.kind != "run":
            parts[-1].marks.append((parts[-1].table.rows, row))
        elif parts[-1].table.rows:
            parts.append(_Part())
    parts[-1].table.add_alike(alike)
    return parts


def _runs(path: Path, form: str, part: _Part, given: str | None) -> list[Run]:
    table = part.table
    columns = {key: column.values() for key, column in table.columns.items()}
    loss_key = given if given in columns else choose_loss(columns)
    summed = summaries(table, loss_key) if loss_key is not None else np.zeros(0, dtype=np.int64)
    if len(summed):
        table.set_apart(summed, BY_EPOCH)
        columns = {key: column.values() for key, column in table.columns.items()}
    frame = Frame.of(table, loss_key)
    notes = [*part.notes, *frame.notes, *frame.layout.notes]
    if len(summed):
        notes.append(f"{len(summed)} rows without a step sum up an epoch: what they hold is called {BY_EPOCH.format('…')!r}")
    if table.left_out:
        notes.append(f"{table.left_out} values of fields beyond the first {COLUMNS} were left out")
    names = our_names(columns, loss_key, notes)
    sessions: dict[int, Session] = {}
    for key, column in table.columns.items():
        if key != frame.step_key:
            name, factor = names[key]
            values = columns[key] if factor == 1.0 else each(lambda some, by=factor: some * by, columns[key], dtype=np.float64)
            for number, piece in frame.pieces(column.rows(), values):
                sessions.setdefault(number, Session()).series[name].append(piece)
    for number, event in _events(part, frame):
        sessions.setdefault(number, Session()).events.append(event)
    return [assemble(path, form, some, loss_key, notes) for some in frame.by_run(sessions)]


def _events(part: _Part, frame: Frame) -> Iterator[tuple[int, Event]]:
    """Marks and skipped steps with their session; where a column counts the steps that lines tell of, too, the longer account."""
    counted = list(_counted(part.table, frame))
    told = sum(mark.kind == SKIPPED for _, mark in part.marks) > len(counted)
    yield from () if told else counted
    for row, mark in part.marks:
        if mark.kind != SKIPPED or told:
            steps, session, _ = frame.place(np.array([row]))
            yield int(session[0]), Event(int(steps[0]), mark.kind, mark.text)


def _counted(table: Table, frame: Frame) -> Iterator[tuple[int, Event]]:
    """The skipped steps that columns count."""
    for key, column in table.columns.items():
        if counts_skips(key):
            steps, session, _ = frame.placed(column.rows())
            for i, step in skipped(key, column.values(), steps):
                yield int(session[i]), Event(step, SKIPPED, f"{key} counts it")
