"""What a reporter is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO, runtime_checkable

from stabilitylens.registry import Registry

if TYPE_CHECKING:
    from stabilitylens.report import Report


@runtime_checkable
class Reporter(Protocol):
    """Writes a report to a stream in one format."""

    def __call__(self, report: Report, stream: TextIO, /) -> None:
        """Write all of it."""


REPORTERS: Registry[Reporter] = Registry("stabilitylens.reports")


def reporter(name: str) -> Callable[[Reporter], Reporter]:
    """Register a reporter under the name of its format, as ``--format`` takes it."""
    return REPORTERS.named(name)
