"""Claims on invented numbers, for tests of what runs claims."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from stabilitylens.errors import BadInput
from stabilitylens.reproductions import Claim, Expect, Plan
from stabilitylens.reproductions._claim import Numbers, Picture, Table


def noted(cell: float, seed: int, folder: Path) -> Numbers:
    """Notes that it was called; below zero it lacks something, 13 kills its process, 14 puts a file in the results' way."""
    out = folder.parents[4]
    with (out / "calls").open("a") as calls:
        calls.write(f"{cell} {seed}\n")
    if cell < 0:
        raise BadInput("this cell needs what is not there")
    if cell == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    if cell == 14:
        (out / "quick" / "results").rename(out / "quick" / "away")
        (out / "quick" / "results").write_text("in the way")
    return {"value": cell + seed}


def _largest(table: Table) -> Numbers:
    return {"largest": max(numbers["value"] for numbers in table.values())}


def invented(*cells: float, name: str = "noted") -> Claim:
    plan = Plan({f"arm@{abs(cell)}": cell for cell in cells}, seeds=2, seconds=1)
    expects = (Expect("largest", "largest value", high=3),)
    return Claim(name, "Numbers are large.", "nobody, https://example.org", "Numbers are small.", expects, noted, _largest, plan, plan, "no", Picture("value", "y", "x"))  # fmt: skip


def calls(folder: Path) -> int:
    path = folder / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def await_(condition: Callable[[], bool]) -> None:
    """Wait for what happens in other processes."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen within five minutes")
