"""What a reader is, and how the one for a path is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stabilitylens.registry import Registry, page_of
from stabilitylens.run import Run

Sniff = Callable[[Path], float]
Read = Callable[[Path], Run | list[Run]]


@dataclass(frozen=True)
class Reader:
    """A reader of one format: its name (its file's), how sure it is of a path, its page, how it reads, and its greatest sureness."""

    name: str
    sniff: Sniff
    page: str
    read: Read
    most: float = 1.0

    @property
    def summary(self) -> str:
        """The first line of its page."""
        return self.page.partition("\n")[0]


READERS: Registry[Reader] = Registry("stabilitylens.readers")


def reader(*, name: str, sniff: Sniff, most: float = 1.0) -> Callable[[Read], Read]:
    """Register the function that reads a format: a run, or the runs of a path, which is never compressed.

    Args:
        name: what ``Run.format`` says, and the file's name.
        sniff: how sure it is that a path that exists holds the format, from 0 (or False), it does not, to 1 (or
            True), it has its signature; looks at the content, trusts no name, and never raises for content it does
            not know. The surest reader reads.
        most: the surest that it ever is; a reader that has to look long is not asked where another is as sure.
    """

    def register(read: Read) -> Read:
        READERS.add(name, Reader(name, sniff, page_of(read), read, most), read)
        return read

    return register


def ranked(path: Path) -> Iterator[tuple[float, Reader]]:
    """The readers that take a path and how sure they are, the surest first; those that cannot be surer are asked late."""
    found: list[tuple[float, Reader]] = []
    for member in sorted(READERS, key=lambda member: -member.most):
        while found and found[0][0] >= member.most:
            yield found.pop(0)
        sure = float(member.sniff(path))
        if sure > 0:
            found = sorted([*found, (sure, member)], key=lambda pair: -pair[0])
    yield from found
