"""One format, one file. ``read_all(path)`` asks each reader how sure it is of a path."""

from __future__ import annotations

from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.readers._assemble import with_loss
from stabilitylens.readers._folder import runs_below
from stabilitylens.readers._one_of_many import called, named, parted, picked, said
from stabilitylens.readers._packed import plain
from stabilitylens.readers._progress import patience
from stabilitylens.readers._reader import READERS, Reader, ranked, reader
from stabilitylens.readers._unreadable import why_unreadable
from stabilitylens.run import Run

#: what a reader that is as sure as this cannot read, no other can; below the second it sees no structure of its own
SIGNED, STRUCTURED = 0.9, 0.5

__all__ = ["READERS", "Reader", "parted", "read", "read_all", "reader"]


def read_all(path: Path, loss: str | None = None) -> list[Run]:
    """Read every run at a path with the reader that is surest of it.

    Args:
        path: a file, plain or compressed (.gz, .bz2, .xz, .zst), a pipe, a folder of one run or of many, or ``-``,
            standard input. Where it holds several runs, ``path#2`` is the second one; runs that have names go by these.
        loss: the series that is the loss, as the log names it; by default it is chosen by name and behaviour.

    Raises:
        BadInput: no reader finds a run there; says what was found and what to do.
    """
    file, name = parted(path)
    runs = _guarded(file)
    runs = runs if name is None else [picked(runs, file, name)]
    if loss is None:
        return runs
    chosen = [found for run in runs if (found := with_loss(run, loss)) is not None]
    if not chosen:
        names = ", ".join(dict.fromkeys(name for run in runs for name in run.series))
        raise BadInput(f"{path} has no series {loss!r} to be the loss; it has {names or 'none'}")
    return chosen


def read(path: Path) -> Run:
    """Read the one run at a path.

    Raises:
        BadInput: there is none, or there are several; says what was found and what to do.
    """
    runs = read_all(path)
    if len(runs) > 1:
        raise BadInput(f"{path} holds {len(runs)} runs ({named(runs, path)}); give one of them, as in {called(runs[0], path)}")
    return runs[0]


def _guarded(path: Path) -> list[Run]:
    notes = list[str]()
    try:
        with patience(path), plain(path, notes) as inner:
            return _read(path) if inner == path else _renamed(_unpacked(inner, path), inner, path, notes)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}; check its permissions") from error


def _unpacked(inner: Path, path: Path) -> list[Run]:
    try:
        return _read(inner)
    except BadInput as error:
        raise BadInput(str(error).replace(str(inner), said(path))) from error


def _renamed(runs: list[Run], inner: Path, path: Path, notes: list[str]) -> list[Run]:
    for run in runs:
        run.path = run.path.replace(str(inner), said(path))
        run.notes = [*notes, *run.notes]
    return runs


def _read(path: Path) -> list[Run]:
    why = None
    for sure, member in ranked(path) if path.exists() else ():
        try:
            found = member.read(path)
            return found if isinstance(found, list) else [found]
        except BadInput as error:
            if sure >= SIGNED:
                raise
            why = why or (error if sure >= STRUCTURED else None)
    if path.is_dir() and (below := runs_below(path, _guarded)):
        return below
    raise why or BadInput(why_unreadable(path))
