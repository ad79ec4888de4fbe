"""The folder of a run: whether it can be written, and that no other run writes into it at the same time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.reproductions._ranks import Ranks

LOCK = ".lock"
#: bytes that are tried; a recording and a result need more than a disk's last ones
TRIED = 1 << 16
#: seconds for which a rank waits for the first one to hold the folder
PATIENCE = 600.0


class Unwritable(BadInput):
    """Nothing more can be stored, so that the whole run ends."""


def unwritable(folder: Path, error: OSError) -> Unwritable:
    """The sentence about it."""
    action = "free space there, or give a folder that can be written (--out); what is stored already is not measured again"
    return Unwritable(f"cannot write in {folder}: {error.strerror}; {action}")


def tried(folder: Path) -> None:
    """Make the folder and write something into it.

    Raises:
        Unwritable: it can't be written.
    """
    path = folder / f".tried_{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(TRIED))
    except OSError as error:
        raise unwritable(folder, error) from error
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def held(folder: Path, ranks: Ranks) -> Iterator[None]:
    """Keep other runs out while the block runs, and let go however this process ends; the ranks of a torchrun are one run.

    Raises:
        Unwritable: the folder can't be written.
        BadInput: another run is in it.
    """
    tried(folder)
    if ranks.rank > 0:
        _wait(folder / LOCK, ranks)
        yield
        return
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        _lock(descriptor, folder)
        os.truncate(descriptor, 0)
        os.write(descriptor, ranks.group.encode())
        yield
        os.truncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BadInput(f"{folder} is in use by another run; wait until it is done, or give this one another folder (--out)") from error
    except OSError:
        return  # some network file systems have no locks


def _wait(lock: Path, ranks: Ranks) -> None:
    """Until the first rank of this torchrun holds the folder; where it is refused, torchrun ends the others."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(OSError):
            if lock.read_text() == ranks.group:
                return
        time.sleep(0.1)
    raise BadInput(f"the first rank did not begin in {lock.parent} within {PATIENCE:.0f} seconds; look at what it said")
