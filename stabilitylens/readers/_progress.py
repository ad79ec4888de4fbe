"""A bar on the terminal for files that take longer than two seconds, and a sign of life where no bar can tell how far it is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.status import Status

PATIENCE = 2.0


@contextmanager
def progress(path: Path) -> Iterator[Callable[[int], None]]:
    """Yields what is called with the number of bytes that were read; nothing is shown where no one looks."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    bar = _Bar(path)
    try:
        yield bar.advance
    finally:
        bar.close()


@contextmanager
def patience(path: Path) -> Iterator[None]:
    """Says after two seconds that a path is being read, unless a bar says so; nothing where no one looks."""
    if not sys.stderr.isatty() or _Wait.now is not None:
        yield
        return
    _Wait.now = _Wait(path)
    try:
        yield
    finally:
        _Wait.now.close()
        _Wait.now = None


class _Wait:
    """A turning sign from the third second on; one at a time."""

    now: ClassVar[_Wait | None] = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shown: Status | None = None
        self.lock = threading.Lock()
        self.timer = threading.Timer(PATIENCE, self.show)
        self.timer.daemon = True
        self.timer.start()

    def show(self) -> None:
        from rich.console import Console

        with self.lock:
            self.shown = Console(stderr=True).status(f"reading {self.path.name}")
            self.shown.start()

    def close(self) -> None:
        """Take the sign away, or see to it that none comes."""
        self.timer.cancel()
        with self.lock:
            if self.shown is not None:
                self.shown.stop()
                self.shown = None


class _Bar:
    """Shown from the third second on."""

    def __init__(self, path: Path) -> None:
        self.path, self.total, self.done, self.began = path, path.stat().st_size, 0, time.monotonic()
        self.shown: Progress | None = None
        self.task: TaskID | None = None

    def advance(self, count: int) -> None:
        self.done += count
        if self.shown is None and time.monotonic() - self.began > PATIENCE:
            from rich import progress
            from rich.console import Console

            if _Wait.now is not None:
                _Wait.now.close()
            self.shown = progress.Progress(console=Console(stderr=True), transient=True)
            self.task = self.shown.add_task(self.path.name, total=self.total)
            self.shown.start()
        if self.shown is not None and self.task is not None:
            self.shown.update(self.task, completed=self.done)

    def close(self) -> None:
        if self.shown is not None:
            self.shown.stop()
