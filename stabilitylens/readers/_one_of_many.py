"""Names one of the runs that a file or a folder holds: ``file#2``, ``file#name``, ``folder#run``."""

from __future__ import annotations

import os
from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.readers._packed import PIPE
from stabilitylens.run import Run

#: names that a sentence lists
_SHOWN = 8


def parted(path: Path) -> tuple[Path, str | None]:
    """The file or folder, and the name of the run in it; None where the path is one as it stands."""
    text = str(path)
    if "#" not in text or os.path.lexists(path):
        return path, None
    places = [i for i, sign in enumerate(text) if sign == "#" and i]
    return next(((Path(text[:i]), text[i + 1:]) for i in reversed(places) if text[:i] == str(PIPE) or os.path.exists(text[:i])), (path, None))


def picked(runs: list[Run], path: Path, name: str) -> Run:
    """The run of a name, or of a number in the order in which they were read, from 1 on.

    Raises:
        BadInput: there is none; says which there are.
    """
    found = [run for run in runs if _short(run, path) == name]
    if found:
        return found[0]
    if name.isdecimal() and 1 <= int(name) <= len(runs):
        return runs[int(name) - 1]
    what = f"the runs {named(runs, path)}" if len(runs) > 1 else "one run"
    raise BadInput(f"{said(path)} holds {what} and none that is called {name!r}; give one that it holds")


def called(run: Run, path: Path) -> str:
    """What gives a run of a path alone."""
    return run.path if os.path.exists(run.path) else f"{'/dev/stdin' if path == PIPE else path}#{_short(run, path)}"


def named(runs: list[Run], path: Path) -> str:
    """The names of the runs of a path, the first of them."""
    more = len(runs) - _SHOWN
    return ", ".join(_short(run, path) for run in runs[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def said(path: Path) -> str:
    """A path in a sentence."""
    return "standard input" if path == PIPE else str(path)


def _short(run: Run, path: Path) -> str:
    return run.path.removeprefix(said(path)).lstrip("/\\#") or run.path
