"""Logs with more rows than memory: what lies in temporary files reads the same, and memory does not grow with the rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitylens.errors import BadInput
from stabilitylens.readers import _column, _large, _places, _table
from stabilitylens.readers._rows import runs_from_rows
from stabilitylens.run import Run

#: as of a log with far more rows than pieces, and of one that fits
SMALL = {_large: {"PIECE": 8, "LARGE": 16, "FILE": 1 << 16}, _table: {"HELD": 32}, _column: {"FEW": 4}}


def told(run: Run) -> Any:
    series = {name: (one.steps.tolist(), np.asarray(one.values).tolist()) for name, one in run.items()}
    return repr((run.path, run.loss_key, run.notes, run.events, series, [told(lost) for lost in run.superseded]))


def read(rows: list[Mapping[str, Any]], small: bool) -> str:
    with pytest.MonkeyPatch.context() as patch:
        for module, values in SMALL.items() if small else ():
            for name, value in values.items():
                patch.setattr(module, name, value)
        try:
            return repr([told(run) for run in runs_from_rows(Path("log"), "test", rows)])
        except BadInput as error:
            return str(error)


def steps_of(kind: str, n: int) -> list[int]:
    return {
        "rising": [*range(n)],
        "resumed": [*range(n), *range(n // 2, n)],
        "anew": [*range(n), *range(n), *range(n // 2)],
        "repeated": [i for i in range(n) for _ in range(2)],
        "interleaved": [step for i in range(n) for step in (10 * i, 10 * i + 3)],
        "constant": [7] * n,
    }[kind]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["rising", "resumed", "anew", "repeated", "interleaved", "constant"]), n=st.integers(2, 60), every=st.integers(1, 5),
    holes=st.sets(st.integers(0, 150)), unknown=st.sets(st.integers(0, 150), max_size=3), epoch=st.booleans(), seed=st.integers(0, 9),
)
def test_what_lies_in_files_reads_the_same(
    kind: str, n: int, every: int, holes: set[int], unknown: set[int], epoch: bool, seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    rows: list[Mapping[str, Any]] = []
    for i, step in enumerate(steps_of(kind, n)):
        row: dict[str, Any] = {"step": step} | ({"epoch": i // n} if epoch else {}) | ({"grad_norm": float(rng.random())} if i % every == 0 else {})
        row |= {} if i in holes else {"loss": float("nan") if i in unknown else round(3 / (1 + step / 5), 3)}
        rows.append(row | {"skipped steps": i // 20})
    assert read(rows, small=True) == read(rows, small=False)


def test_numbers_of_a_file_are_let_go_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_large, "LARGE", 1)
    numbers = _large.each(lambda some: some + 1, np.arange(1000.0), dtype=np.float64)
    _large.let_go(numbers, numbers[10:20])
    assert numbers.tolist() == [i + 1.0 for i in range(1000)]


@pytest.mark.parametrize("have", [range(3, 9), np.array([3, 5, 8])])
def test_values_of_rows_are_looked_up(have: Any) -> None:
    rows, values = np.array([0, 3, 5, 8, 20]), np.arange(float(len(have)))
    expected = [dict(zip(list(have), values.tolist(), strict=True)).get(row) for row in rows.tolist()]
    found = _places.looked_up(rows, have, values)
    assert [None if np.isnan(value) else value for value in found.tolist()] == expected
    assert _places.among(rows, have).tolist() == [value is not None for value in expected]


def test_a_full_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(BadInput, match="set TMPDIR to a folder that has$"):
        _large.empty(10_000_000, np.float64)


LINE = {
    "text": lambda i: f"step {i} loss {2 + i * 7919 % 1000 / 1e4:.1f}\n",
    "resumed": lambda i: f"step {i % 600_000 + i // 600_000 * 300_000} loss {9 - i / 1e6:.4f}\n",
    "csv": lambda i: f"{i},{i * 7919 % 1000 / 1e4:.1f}\n" if i else "step,loss\n",
    "holes": lambda i: f"{i},{i % 9},{i % 7 if i % 10 else ''}\n" if i else "step,loss,grad_norm\n",
    "wide": lambda i: "1.5," * 399 + f"{i % 9}\n" if i else ",".join(f"loss {k}" for k in range(400)) + "\n",
}
#: ru_maxrss of a process is at least that of the one that started it; this is not
MEASURE = """
import sys
from pathlib import Path
import numpy, pyarrow.csv, stabilitylens.readers

def most():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

before = most()
runs = stabilitylens.readers.read_all(Path(sys.argv[1]))
print(sum(map(len, runs[0].values())), (most() - before) // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(("kind", "rows", "most"), [
    ("text", 1_000_000, 80), ("resumed", 1_000_000, 90), ("csv", 2_000_000, 170), ("holes", 2_000_000, 200), ("wide", 40_000, 230),
])
def test_memory_does_not_grow_with_the_rows(kind: str, rows: int, most: int, tmp_path: Path) -> None:
    """``most``: MB that a read may add, whatever the length of the log; all rows in memory would take a third more at least."""
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as file:
        file.writelines(map(LINE[kind], range(rows)))
    done = subprocess.run([sys.executable, "-c", MEASURE, str(log)], capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    points, megabytes = map(int, done.stdout.split())
    assert points > 0.6 * rows and megabytes < most
