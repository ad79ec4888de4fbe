"""Values without a name: tables without a header, and lines of a step, a name and a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stabilitylens import load

N = 400
STEPS = np.arange(N)
LOSS = np.round((2.8 + 7 * np.exp(-STEPS / 100)) * (1 + 0.01 * np.random.default_rng(0).standard_normal(N)), 4)
LR = 3e-4 * np.minimum(1, (STEPS + 1) / 40) * (0.5 + 0.5 * np.cos(np.pi * STEPS / N))
SPEED = 12_000 + 300 * np.random.default_rng(1).standard_normal(N)


@pytest.mark.parametrize("between", [" ", "  ", "\t", ",", ";"])
@pytest.mark.parametrize(("line", "column"), [
    (lambda i: (f"{i:5d}", f"{LOSS[i]}", f"{LR[i]:.3e}"), "column 2"),
    (lambda i: (f"{i:5d}", f"{LR[i]:.3e}", f"{LOSS[i]}", f"{SPEED[i]:.0f}"), "column 3"),
    (lambda i: (f"{i:5d}", f"{i * 4096}", f"{SPEED[i]:.0f}", f"{LOSS[i]}"), "column 4"),
])
def test_a_table_without_names_has_the_loss_that_behaves_as_one(between: str, line: Callable[[int], tuple[str, ...]], column: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(between.join(line(i)) + "\n" for i in range(N)))
    run = load(path)
    assert run["loss"].values.tolist() == LOSS.tolist() and run["loss"].steps.tolist() == STEPS.tolist()
    assert run.loss_key == column and any(column in note and "--loss" in note for note in run.notes)


@pytest.mark.parametrize("form", ["{step} {name} {value}", "{name} {step} {value}", "{step},{name},{value}", "{step}\t{name}\t{value}"])
def test_lines_of_a_step_a_name_and_a_value(form: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    values = [(i, name, value) for i in range(N) for name, value in (("val", LOSS[i] + 0.1), ("hella", 0.25), ("train", LOSS[i])) if name == "train" or i % 50 == 0]
    path.write_text("".join(form.format(step=step, name=name, value=value) + "\n" for step, name, value in values))
    run = load(path)
    assert run.format == "step_name_value" and run.loss_key == "train loss" and run.notes == []
    assert run["loss"].values.tolist() == LOSS.tolist() and run["loss"].steps.tolist() == STEPS.tolist()
    assert len(run["val loss"]) == len(run["hella"]) == N // 50
