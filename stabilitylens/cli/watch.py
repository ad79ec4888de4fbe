"""``stabilitylens watch``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def watch(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a run is recorded in, or a log of any tool.")],
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print what there is now and leave; as in a pipe.")] = False,
) -> None:
    """Follow a run in the terminal while it trains: loss, worst layers, incidents as they come.

    Ctrl-C ends it; the run is not touched.
    """
    from rich.console import Console
    from rich.live import Live

    from stabilitylens.dashboard._frame import frame
    from stabilitylens.dashboard._watched import Watched

    console, watched = Console(highlight=False, emoji=False, markup=False), Watched(path)
    if once or not console.is_terminal:
        console.print(frame(watched.look(), console.width))
        return
    with Live(frame(watched.look(), console.width), console=console, auto_refresh=False, vertical_overflow="crop") as live, _interrupted() as end:
        while not end.wait(interval):
            live.update(frame(watched.look(), console.width), refresh=True)


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """Set by Ctrl-C; an exception that is raised while an object is being cleared away would be lost."""
    end = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: end.set())
    try:
        yield end
    finally:
        signal.signal(signal.SIGINT, before)
