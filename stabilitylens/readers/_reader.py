"""What a reader is, and how the one for a path is found."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stabilitylens.registry import Registry
from stabilitylens.run import Run

Sniff = Callable[[Path], bool]
Read = Callable[[Path], Run]


@dataclass(frozen=True)
class Reader:
    """A reader of one format: its name (its file's), whether a path is for it, its page, and how it reads."""

    name: str
    sniff: Sniff
    page: str
    read: Read


READERS: Registry[Reader] = Registry("stabilitylens.readers")


def reader(*, name: str, sniff: Sniff) -> Callable[[Read], Read]:
    """Register the function that reads a format.

    Args:
        name: what ``Run.format`` says, and the file's name.
        sniff: whether a path that exists holds the format; looks at the content, trusts no name, and
            never raises for content it does not know.
    """

    def register(read: Read) -> Read:
        READERS.add(name, Reader(name, sniff, inspect.cleandoc(read.__doc__ or ""), read))
        return read

    return register
