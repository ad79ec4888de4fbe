"""Skipped steps that a text log tells of: each once, at its step, with the loss scale that it left."""

from __future__ import annotations

from pathlib import Path

import pytest

from stabilitylens import load
from stabilitylens.run import Run

N = 40


def run_of(text: str, folder: Path) -> Run:
    path = folder / "train.log"
    path.write_text(text)
    return load(path)


def overflow(rank: int, scale: float) -> str:
    return f"[INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank {rank} Skipping step. Attempted loss scale: {2 * scale}, reducing to {scale}\n"


def skipped(run: Run) -> list[int]:
    return [event.step for event in run.events if event.kind == "step_skipped"]


def test_a_column_and_a_line_that_tell_of_the_same_step_count_it_once(tmp_path: Path) -> None:
    run = run_of("".join(
        overflow(0, 2.0 ** (60 - i)) + f"[Rank 0] step={i}, skipped={i}, lr=[0.0]\nepoch 0 step {i} loss {10.8 + 0.01 * i:.2f}\n" for i in range(1, N + 1)
    ), tmp_path)
    assert skipped(run) == list(range(1, N + 1))
    assert run["loss_scale"].steps.tolist() == list(range(1, N + 1))
    assert run["loss_scale"].values.tolist() == [2.0 ** (60 - i) for i in range(1, N + 1)]


def test_each_rank_tells_of_one_step(tmp_path: Path) -> None:
    lines = ["".join(overflow(rank, 2.0 ** (60 - i)) for rank in (3, 0, 1, 2)) if i % 10 == 0 else "" for i in range(1, N + 1)]
    run = run_of("".join(line + f"step {i} loss {3 - 0.01 * i:.2f}\n" for i, line in enumerate(lines, 1)), tmp_path)
    assert skipped(run) == [10, 20, 30, 40]
    assert run["loss_scale"].steps.tolist() == [10, 20, 30, 40] and run["loss_scale"].values.tolist() == [2.0 ** (60 - i) for i in (10, 20, 30, 40)]


@pytest.mark.parametrize("line", [
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 256.0",
    "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 256.0",
])
def test_other_tools_tell_so(line: str, tmp_path: Path) -> None:
    run = run_of("".join((f"{line}\n" if i == 20 else "") + f"step {i} loss {3 - 0.01 * i:.2f}\n" for i in range(1, N + 1)), tmp_path)
    assert skipped(run) == [20] and run["loss_scale"].steps.tolist() == [20] and run["loss_scale"].values.tolist() == [256.0]


def test_where_lines_tell_of_more_steps_than_the_column_they_count(tmp_path: Path) -> None:
    run = run_of("".join(overflow(0, 2.0) + f"step={i}, skipped=0\nstep {i} loss {3 - 0.01 * i:.2f}\n" for i in range(1, N + 1)), tmp_path)
    assert skipped(run) == list(range(1, N + 1))
