"""The last two snapshots of a training, in the host's memory or on disk."""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from stabilitylens.hooks.blackbox.folder import Write, first_line
from stabilitylens.hooks.blackbox.plain import mapped, own_storage
from stabilitylens.hooks.blackbox.snapshot import Snapshot

#: takes the snapshot of a step, in the memory of an older one where it is given one
Take = Callable[[int, Snapshot | None], Snapshot]
#: as many are kept: the newest may lie too close before an incident, or after its beginning
KEPT = 2


@dataclass
class Stored:
    """A snapshot that is kept: ``snapshot`` in memory, or ``path`` on disk."""

    step: int
    size: int
    left_out: dict[str, str] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    path: Path | None = None
    sharded: bool = False

    def apart(self, split: Callable[[Snapshot], tuple[Snapshot, dict[str, Any]]]) -> tuple[Write, dict[str, Any]]:
        """What writes this process's own part of it, and the shards of what is spread over several."""
        snapshot = self.snapshot
        if snapshot is None and self.path is not None and self.sharded:
            snapshot = Snapshot(**torch.load(self.path, map_location="cpu", weights_only=True))
        if snapshot is None:
            return self._copy, {}
        rest, shards = split(snapshot)
        return functools.partial(save, rest), shards

    def _copy(self, path: Path) -> None:
        assert self.path is not None
        shutil.copyfile(self.path, path)

    def drop(self) -> None:
        """Let go of it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def save(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot as plain data."""
    body: dict[str, Any] = {name: getattr(snapshot, name) for name in Snapshot.__dataclass_fields__}
    torch.save(mapped(body, own_storage), path)


class Rolling:
    """Takes a snapshot every so many steps and keeps the last two.

    Args:
        every: steps between them.
        take: takes one.
        folder: where they are written by a thread; None keeps them in memory.
        say: tells of a snapshot that could not be written; the one before is kept.
        waits: whether one that is still being written is waited for, rather than the next one left out.
    """

    def __init__(self, every: int, take: Take, folder: Path | None, say: Callable[[str], None], waits: bool) -> None:
        self._every, self._take, self._folder, self._say, self._waits = every, take, folder, say, waits
        self._kept: list[Stored] = []
        self._writing: threading.Thread | None = None
        self._last: int | None = None

    def before(self, step: int) -> None:
        """Take a snapshot if it is the turn of the step that is about to begin."""
        if self._last is not None and step < self._last + self._every and step >= self._last:
            return
        if self._writing is not None and self._writing.is_alive() and not self._waits:  # the disk is slower than the training
            return
        if self._folder is None:
            reuse = self._kept.pop(0).snapshot if len(self._kept) == KEPT else None
            snapshot = self._take(step, reuse)
            self._kept.append(Stored(step, snapshot.size, snapshot.left_out, snapshot))
        else:
            self._write(self._take(step, None))
        self._last = step

    def stored(self) -> list[Stored]:
        """Those that are kept, the oldest first; waits for the one that is being written."""
        self._wait()
        return list(self._kept)

    def oldest(self) -> Snapshot | None:
        """The oldest of them, to go on from; none is kept from here on, and the next step begins with a new one."""
        kept = self.stored()
        if not kept:
            return None
        first = kept[0]
        snapshot = first.snapshot or Snapshot(**torch.load(str(first.path), map_location="cpu", weights_only=True))
        self.close()
        self._last = None
        return snapshot

    def close(self) -> None:
        """Let go of all of them."""
        self._wait()
        for stored in self._kept:
            stored.drop()
        self._kept.clear()

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def _write(self, snapshot: Snapshot) -> None:
        self._wait()
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        self._writing = threading.Thread(target=self._to_disk, args=(snapshot,), name="stabilitylens-snapshot", daemon=True)
        self._writing.start()

    def _to_disk(self, snapshot: Snapshot) -> None:
        assert self._folder is not None
        path = self._folder / f"snapshot_{snapshot.step}.{os.getpid()}.pt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            save(snapshot, path.with_suffix(".partial"))
            os.replace(path.with_suffix(".partial"), path)
        except (OSError, RuntimeError) as error:  # torch raises the second where a disk is full
            path.with_suffix(".partial").unlink(missing_ok=True)
            self._say(f"a snapshot, that before step {snapshot.step}, could not be written to {self._folder} ({first_line(error)})")
            return
        self._kept.append(Stored(snapshot.step, snapshot.size, snapshot.left_out, path=path, sharded=bool(snapshot.sharded)))
        for stored in self._kept[:-KEPT]:
            stored.drop()
        del self._kept[:-KEPT]
