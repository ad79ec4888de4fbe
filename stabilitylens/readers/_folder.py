"""The runs below a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.readers._reader import ranked
from stabilitylens.run import Run

#: so deep, and so many files, are looked at; a guess below this is not enough among other files. *Heuristic*.
DEEP, MANY, SURE = 6, 10_000, 0.4
_SKIP = frozenset((".git", "__pycache__", "node_modules", ".venv", "site-packages"))


def runs_below(folder: Path, read: Callable[[Path], list[Run]]) -> list[Run]:
    """The runs of all files and folders below, in the order of their paths; none where nothing is a log."""
    runs: list[Run] = []
    for path in _candidates(folder, DEEP):
        try:
            runs += [run for run in read(path) if run.series]
        except BadInput:
            continue
    return runs


def _candidates(folder: Path, deep: int) -> Iterator[Path]:
    """Files and folders that a reader is sure of; what is below such a folder is that reader's."""
    for name in sorted(os.listdir(folder))[:MANY]:
        path = folder / name
        if name in _SKIP or not os.access(path, os.R_OK):
            continue
        if _is_log(path):
            yield path
        elif path.is_dir() and not path.is_symlink() and deep:
            yield from _candidates(path, deep - 1)


def _is_log(path: Path) -> bool:
    found = next(ranked(path), None) if path.is_file() or path.is_dir() else None
    return found is not None and found[0] >= SURE
