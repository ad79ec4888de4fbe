"""The two files of one session of a run: names that are new, and in order after those that are there."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from pathlib import Path

from stabilitylens.arrayrecord import read_description
from stabilitylens.tfrecord import BEFORE
from stabilitylens.writers._append import Appender

FOLDER = "stabilitylens"
ARRAYS = re.compile(r"arrays\.(\d+)\.sl")
EVENTS = re.compile(r"events\.out\.tfevents\.(\d+)\..*\.(\d+)")


def session_of(name: str) -> int | None:
    """The number of the session that a file of a recording belongs to, None for any other file."""
    found = ARRAYS.fullmatch(name) or EVENTS.fullmatch(name)
    return int(found[found.lastindex or 1]) if found else None


def _new_arrays(folder: Path, number: int) -> tuple[int, Appender]:
    while True:
        try:
            return number, Appender(folder / f"arrays.{number}.sl")
        except FileExistsError:
            number += 1


def first_step(folder: Path) -> int | None:
    """The first step of the run that a folder holds, as its earliest session noted it; None where none is told."""
    sessions = [n for n in map(session_of, os.listdir(folder) if folder.is_dir() else ()) if n is not None]
    for number in sorted(sessions):
        try:
            with (folder / f"arrays.{number}.sl").open("rb") as file:
                return int(json.loads(read_description(file.read(4096)[BEFORE:]))["first_step"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def open_session(folder: Path) -> tuple[int, Appender, Appender]:
    """Create the session's event file and array file.

    TensorBoard reads event files in order of their names, so the time in the name is later than that
    of every file before it, even where two sessions begin within a second.

    Returns:
        Number of the session from 0, event file, array file.

    Raises:
        OSError: the folder or a file cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = os.listdir(folder)
    sessions = [n for n in map(session_of, names) if n is not None]
    times = [int(found[1]) for found in map(EVENTS.fullmatch, names) if found]
    number, arrays = _new_arrays(folder, max(sessions, default=-1) + 1)
    stamp = max(int(time.time()), max(times, default=0) + 1)
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname())
    events = Appender(folder / f"events.out.tfevents.{stamp:010d}.{host}.{os.getpid()}.{number}")
    return number, events, arrays
