"""A bar on the terminal for files that take longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

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

            self.shown = progress.Progress(console=Console(stderr=True), transient=True)
            self.task = self.shown.add_task(self.path.name, total=self.total)
            self.shown.start()
        if self.shown is not None and self.task is not None:
            self.shown.update(self.task, completed=self.done)

    def close(self) -> None:
        if self.shown is not None:
            self.shown.stop()
