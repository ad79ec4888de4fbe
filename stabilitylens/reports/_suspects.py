"""Which suspects a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stabilitylens.dumps import Dump
    from stabilitylens.report import Subject

#: suspects shown in full, and how likely all but the first must be. *Heuristic*.
SHOWN, LIKELY = 3, 0.1


def leading(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first, and what else is likely; ``entries`` are those of one run, most likely first."""
    return [entry for i, entry in enumerate(entries) if i == 0 or (i < SHOWN and entry["score"] >= LIKELY)]


def first_of(entries: Iterable[dict[str, Any]]) -> dict[int, str]:
    """The likeliest suspect of each incident that was asked about, by the incident's index in its run."""
    return {index: entry["name"] for entry in entries for index in entry["incidents"]}


def excluded(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Names of those that something speaks against; none where the suspect unknown is shown, which lists them itself."""
    if any(entry["name"] == "unknown" for entry in leading(entries)):
        return []
    return [entry["name"] for entry in entries if entry["excluded"]]


def untested(entries: Iterable[dict[str, Any]], subject: Subject) -> list[Dump]:
    """The dumps of those incidents that the leading suspects are of and on which no cure has been tried."""
    found = [subject.dump_of(subject.incidents[entry["incident"]]) for entry in leading(entries)]
    open_ones = [dump for dump in found if dump is not None and dump.table is None and dump.calls]
    return [dump for i, dump in enumerate(open_ones) if dump not in open_ones[:i]]
