"""Writes an incident's folder whole or not at all, and keeps all of them within a budget."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from stabilitylens.beside import forget
from stabilitylens.hooks.blackbox.manifest import NAME, Manifest, sha256

PARTIAL = ".partial"
_INCIDENT = re.compile(r"step_(\d+)(?:\.(\d+))?")
#: writes one file to the path that it is given
Write = Callable[[Path], None]


class TooLarge(Exception):
    """An incident takes more than all of them may."""

    def __init__(self, wanted: int, budget: int) -> None:
        super().__init__(wanted, budget)
        self.wanted = wanted

    def __str__(self) -> str:
        wanted, budget = self.args
        return (
            f"an incident of {wanted / 1e6:.2f} MB is not written, since budget_bytes allows {budget / 1e6:.2f} MB for all of them: "
            f"pass BlackBox(budget_bytes={wanted}) or more, or keep fewer steps with keep= or max_bytes="
        )


def place(incidents: Path, step: int) -> Path:
    """The folder of an incident that is being written."""
    return incidents / f".step_{step}{PARTIAL}"


def begin(folder: Path) -> None:
    """Make a folder anew; what a process that died left of the same one is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def fill(folder: Path, files: Mapping[str, Write]) -> None:
    """Write files, each of them on the disk when this returns."""
    for name, write in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        sync(path)


def discard(folder: Path) -> None:
    """Remove what was begun."""
    shutil.rmtree(folder, ignore_errors=True)


def first_line(error: Exception) -> str:
    """What an error says, without the places in a library's own code that some list after it."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def finish(folder: Path, manifest: Manifest, budget: int) -> tuple[Path, list[str]]:
    """Add the manifest, and give the folder its name in one move, so that no half incident bears one.

    Older ones make room when it is there, so that one that can't be written costs none of them.

    Returns:
        The incident's folder, and the names of those that made room.

    Raises:
        TooLarge: it alone takes more than the budget.
    """
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    files = {p.relative_to(folder).as_posix(): {"sha256": sha256(p), "bytes": p.stat().st_size} for p in found}
    path = folder / NAME
    path.write_text(replace(manifest, files=files).to_json(), encoding="utf-8")
    sync(path)
    wanted = size_of(folder)
    if wanted > budget:
        raise TooLarge(wanted, budget)
    for inner in {p.parent for p in found} | {folder}:
        sync(inner)
    target = _free(folder.parent, manifest.step)
    forget(target)  # of an incident of that name that somebody removed
    os.rename(folder, target)
    sync(target.parent)
    return target, make_room(folder.parent, budget, wanted, target)


def sync_all(folder: Path) -> None:
    """Have the disk hold every file of a folder that another library wrote."""
    for path in folder.rglob("*"):
        if path.is_file():
            sync(path)


def sync(path: Path) -> None:
    """Have the disk hold what the operating system was told; where a folder can't be synced, it is not."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _free(incidents: Path, step: int) -> Path:
    target, again = incidents / f"step_{step}", 1
    while target.exists():
        again += 1
        target = incidents / f"step_{step}.{again}"
    return target


def dumped(incidents: Path) -> list[Path]:
    """The folders of the incidents that were dumped, the oldest first."""
    found = [p for p in incidents.iterdir() if _INCIDENT.fullmatch(p.name)] if incidents.is_dir() else []
    return sorted(found, key=_age)


def _age(folder: Path) -> tuple[float, list[int]]:
    found = _INCIDENT.fullmatch(folder.name)
    try:
        written = (folder / NAME).stat().st_mtime
    except OSError:
        written = 0.0
    return written, [int(n or 1) for n in found.groups()] if found else []


def size_of(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def make_room(incidents: Path, budget: int, wanted: int, new: Path | None = None) -> list[str]:
    """Remove the oldest incidents but the new one until its bytes fit too; the names of those that had to go."""
    kept, gone = [p for p in dumped(incidents) if p != new], []
    sizes = {p: size_of(p) for p in kept}
    while kept and sum(sizes[p] for p in kept) + wanted > budget:
        oldest = kept.pop(0)
        hidden = oldest.with_name(f".{oldest.name}{PARTIAL}")
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(oldest, hidden)  # a removal that is interrupted leaves no half incident either
        shutil.rmtree(hidden, ignore_errors=True)
        forget(oldest)
        gone.append(oldest.name)
    return gone


def sweep(incidents: Path) -> None:
    """Remove what processes that died while they wrote have left behind."""
    for folder in incidents.glob(f".step_*{PARTIAL}") if incidents.is_dir() else ():
        shutil.rmtree(folder, ignore_errors=True)
