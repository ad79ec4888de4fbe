"""Reads the log lines of MLPerf's training benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stabilitylens.readers._reader import reader
from stabilitylens.readers._rows import runs_from_rows
from stabilitylens.readers._source import byte_lines
from stabilitylens.readers._text_reader import SIGNED, signed
from stabilitylens.run import Run

_MARKS = (b":::MLLOG ", b":::MLLog ")
#: what an entry may be counted by, the better first
_COUNTERS = ("step_num", "step", "iteration", "samples_count", "epoch_num", "epoch")


@reader(name="mllog", sniff=signed(r":::MLL(?:OG|og) \{"), most=SIGNED)
def read(path: Path) -> list[Run]:
    """MLPerf's training logs: ``:::MLLOG {"key": "train_loss", "value": 2.1, "metadata": {"step_num": 10}}``, among other text.

    Each key is a series over ``step_num``, or where an entry has none over the samples or epochs that it names. Entries of
    several ranks at one step count once.
    """
    skipped, notes = [0], list[str]()

    def rows() -> Iterator[dict[str, Any]]:
        yield from _rows(path, skipped)
        if skipped[0]:
            notes.append(f"{skipped[0]} entries could not be read and were skipped")

    return runs_from_rows(path, "mllog", rows(), notes)


def _rows(path: Path, skipped: list[int]) -> Iterator[dict[str, Any]]:
    for line in byte_lines(path):
        mark = next((mark for mark in _MARKS if mark in line), None)
        if mark is None:
            continue
        try:
            entry = json.loads(line.partition(mark)[2])
            about = entry["metadata"]
            counters = {name: about[name] for name in _COUNTERS if name in about}
            if counters and entry["key"]:
                yield {"step": next(iter(counters.values())), entry["key"]: entry["value"]}
        except (ValueError, RecursionError, KeyError, TypeError):
            skipped[0] += 1
