"""One format, one file. ``read(path)`` asks each reader whether a path is for it."""

from __future__ import annotations

from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.readers._reader import READERS, Reader, reader
from stabilitylens.readers._unreadable import why_unreadable
from stabilitylens.run import Run

__all__ = ["READERS", "Reader", "read", "reader"]


def read(path: Path) -> Run:
    """Read a run with the first reader that knows the path's format.

    Raises:
        BadInput: no reader does, or nothing there can be read; says what was found and what to do.
    """
    try:
        found = next((member for member in READERS if path.exists() and member.sniff(path)), None)
        if found is None:
            raise BadInput(why_unreadable(path))
        return found.read(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}; check its permissions") from error
