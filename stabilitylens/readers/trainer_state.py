"""Reads ``trainer_state.json`` of the Hugging Face Trainer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stabilitylens.errors import BadInput
from stabilitylens.readers._json import begins_json, document
from stabilitylens.readers._json_large import Records
from stabilitylens.readers._reader import reader
from stabilitylens.readers._rows import runs_from_rows
from stabilitylens.run import Run

NAME = "trainer_state.json"
_STEP = re.compile(rb'"global_step"\s*:\s*(\d+)')
#: the end of one object and the begin of another: JSON lines
_ANOTHER = re.compile(rb"\}\s*\n\s*\{")
#: only the row that sums up the training has these
_SUMMARY = frozenset(("train_runtime", "train_steps_per_second"))


def _is_state(path: Path) -> bool:
    before, key, _ = begins_json(path).partition(b'"log_history"')
    return bool(key) and _ANOTHER.search(before) is None


def state_of(path: Path) -> Path | None:
    """The latest state at a path: the file, or in a folder that of the last checkpoint."""
    if path.is_file():
        return path if _is_state(path) else None
    states = [path / NAME, *path.glob(f"checkpoint-*/{NAME}")]
    return max((state for state in states if state.is_file() and _is_state(state)), key=_global_step, default=None)


def _global_step(path: Path) -> int:
    found = _STEP.search(begins_json(path))
    return int(found[1]) if found else -1


def _rows(history: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return (_trained(row) if "train_loss" in row else row for row in history if isinstance(row, dict))


def _trained(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the mean over the whole training, where it is one that sums up."""
    return row if _SUMMARY.isdisjoint(row) else {key: value for key, value in row.items() if key != "train_loss"}


@reader(name="trainer_state", sniff=lambda path: 0.95 if state_of(path) is not None else 0.0, most=0.95)
def read(path: Path) -> list[Run]:
    """``trainer_state.json`` of the Hugging Face Trainer and all that build on it.

    Give the file, or a folder of checkpoints: the state with the largest ``global_step`` holds the history of all. The
    loss is ``loss``; ``train_loss`` of the last row is the mean over the whole training and left out. The Trainer's
    ``logging_nan_inf_filter``, on by default, puts the running mean in the place of a NaN loss.
    """
    state, notes = state_of(path), list[str]()
    assert state is not None
    found = document(state, notes)
    history = found.get("log_history") if isinstance(found, dict) else found
    history = history if isinstance(history, list | Records) else []
    if not any("loss" in key for row in _rows(history) for key in row):
        what = "only the summary of a training" if any(_rows(history)) else "nothing"
        raise BadInput(f"the log_history of {state} holds {what}, no step; set logging_steps, or give the run's console log")
    return runs_from_rows(state, "trainer_state", _rows(history), notes)
