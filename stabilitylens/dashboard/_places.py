"""The recordings below the log directories that TensorBoard was given, by name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from stabilitylens.writers._session import EVENTS, FOLDER, session_of

#: seconds between two looks into the folders; where a look takes long, it is taken more rarely
PAUSE = 2.0
#: share of the time that may go into looking
SHARE = 0.05


class Places:
    """Finds recordings; what is asked for by name is looked up here, and no name is ever made a path.

    Args:
        roots: folders, each with the name that it was given, empty where it has none.
    """

    def __init__(self, roots: dict[Path, str]) -> None:
        self._roots = roots
        self._found: dict[str, Path] = {}
        self._next = 0.0

    def recordings(self) -> dict[str, Path]:
        """Path of every recording by its name: the folder's place below the log directory."""
        now = time.monotonic()
        if now >= self._next:
            self._found = dict(sorted(_claimed(pair for root, name in self._roots.items() for pair in _below(root, name))))
            took = time.monotonic() - now
            self._next = now + took + max(PAUSE, took / SHARE)
        return self._found


def began(path: Path) -> int:
    """When the last session of a recording was begun, in seconds since 1970, as its event file is called; 0 where none is there."""
    try:
        names = os.listdir(path if path.name == FOLDER else path / FOLDER)
    except OSError:
        return 0
    return max((int(found[1]) for found in map(EVENTS.fullmatch, names) if found), default=0)


def roots_of(logdir: str | None, spec: str | None) -> dict[Path, str]:
    """The local folders that TensorBoard's ``--logdir`` or ``--logdir_spec`` names.

    A spec is ``name:folder`` or ``folder``, several with commas between; folders on other machines are left out.
    """
    named: list[tuple[str, str]] = [("", logdir)] if logdir else []
    for part in (spec or "").split(",") if not logdir else ():
        name, colon, folder = part.partition(":")
        plain = not colon or part.startswith("/") or os.path.splitdrive(part)[0] or "://" in part
        named.append(("", part) if plain else (name, folder))
    return {Path(folder).expanduser().resolve(): name for name, folder in named if folder and "://" not in folder}


def _claimed(found: Iterator[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
    """Names as text that can be sent, each once."""
    taken: set[str] = set()
    for name, path in found:
        text = free = name.encode("utf-8", "replace").decode()
        n = 1
        while free in taken:
            n += 1
            free = f"{text} ({n})"
        taken.add(free)
        yield free, path


def _below(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    own = name or (root.parent.name if root.name == FOLDER else root.name)
    if _holds_sessions(root):
        yield own, root
        return
    seen: set[str] = set()
    for folder, inner, _ in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        path = Path(folder)
        if FOLDER in inner and _holds_sessions(path / FOLDER):
            inner.remove(FOLDER)
            place = path.relative_to(root).as_posix()
            yield (own if place == "." else f"{name}/{place}" if name else place), path
        inner.sort()


def _holds_sessions(folder: Path) -> bool:
    if folder.name != FOLDER:
        return False
    try:
        return any(session_of(file) is not None for file in os.listdir(folder))
    except OSError:
        return False
