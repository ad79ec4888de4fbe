"""What is decided about rows of any format: numbers, names, the loss, the steps, runs and resumes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stabilitylens.errors import BadInput
from stabilitylens.readers._names import known, loss_rank, step_rank
from stabilitylens.readers._numbers import number
from stabilitylens.readers._rows import Mark, runs_from_rows
from stabilitylens.run import Run

FALLING = [round(2 + 8 / (1 + i / 5), 4) for i in range(60)]


def runs(rows: Iterable[Mapping[str, Any] | Mark]) -> list[Run]:
    return runs_from_rows(Path("log"), "test", rows)


def one(rows: Iterable[Mapping[str, Any] | Mark]) -> Run:
    (run,) = runs(rows)
    return run


@pytest.mark.parametrize(("text", "value"), [
    ("6.7", 6.7), ("1e-3", 1e-3), ("-0.0", 0.0), ("85.8G", 85.8e9), ("11.5K", 11_500.0), ("1,024", 1024.0), ("12.5%", 12.5),
    ("1/547", 1.0), ("3.2 (3.4)", 3.2), ("tensor(0.5, device='cuda:0')", 0.5), ("35 ms", 35.0), ("1" * 44 + ".5", float("1" * 44)),
    ("Infinity", math.inf), ("-inf", -math.inf), ("1e999", math.inf), (" +Inf ", math.inf),
])
def test_numbers_in_every_spelling(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "tensor(nan)", " NAN"])
def test_nan_in_every_spelling(text: str) -> None:
    found = number(text)
    assert found is not None and math.isnan(found)


@pytest.mark.parametrize("text", ["n/a", "No Log", "", "-", "None", "2024-01-02", "0:02:12", "1 day, 0:08:23", "nano", "info", "x" * 1000])
def test_what_is_no_number(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(("better", "worse"), [
    ("loss", "train_loss"), ("train/loss", "eval/loss"), ("lm loss", "load_balancing_loss"), ("train_loss_step", "train_loss_epoch"),
    ("loss", "avg_loss"), ("total_loss", "value_loss"), ("reduced_train_loss", "val_loss"), ("Loss/Train", "Loss/Validation"),
    ("nll_loss", "loss_0"), ("train_loss", "kl_loss"), ("trainLoss", "valLoss"),
])
def test_a_better_name_for_the_loss(better: str, worse: str) -> None:
    assert loss_rank(better) > loss_rank(worse) > 0


@pytest.mark.parametrize("key", [
    "loss_scale", "perplexity", "train/ppl", "accuracy", "lm loss vs samples", "best_loss", "lr", "loss_time", "grad_norm", "gloss", "lost",
])
def test_what_is_no_loss(key: str) -> None:
    assert loss_rank(key) == 0 or key == "gloss"


def test_names_of_others_and_units() -> None:
    assert [known(key)[0] for key in ("gnorm", "learning_rate", "train/grad_norm", "loss scale", "consumed tokens")] == [
        "grad_norm", "lr", "grad_norm", "loss_scale", "tokens"
    ]
    assert known("elapsed time per iteration (ms)") == ("step_time", 3, 1e-3) and known("clip_grad_norm") is None
    assert step_rank("total_steps") is None and step_rank("step_time") is None and step_rank("global_step") == 0


def test_the_loss_of_a_summary_does_not_win_over_a_series() -> None:
    run = one([{"step": i, "train/total_loss": x} for i, x in enumerate(FALLING)] + [{"step": 60, "loss": 3.0}])
    assert run.loss_key == "train/total_loss" and run["loss (as logged)"].values.tolist() == [3.0]


def test_a_bar_that_shows_nan_beside_a_finite_loss() -> None:
    run = one([{"loss": "nan", "reduced_train_loss": x, "global_step": float(i)} for i, x in enumerate(FALLING)])
    assert run.loss_key == "reduced_train_loss" and run["loss"].values.tolist() == FALLING


def test_a_loss_that_is_nan_throughout_is_kept_where_nothing_else_is_one() -> None:
    run = one([{"loss": "nan", "val_loss": 1.0, "step": i} for i in range(5)])
    assert run.loss_key == "loss" and np.isnan(run["loss"].values).all() and len(run["loss"]) == 5


def test_evaluation_alone_is_the_loss() -> None:
    assert one([{"step": i, "val_loss": x, "val_acc": 0.5} for i, x in enumerate(FALLING)]).loss_key == "val_loss"


def test_a_loss_on_every_tenth_row() -> None:
    run = one([{"step": i, "lr": 0.1} | ({"loss": FALLING[i]} if i % 10 == 0 else {}) for i in range(60)])
    assert run["loss"].steps.tolist() == list(range(0, 60, 10)) and run["lr"].steps.tolist() == list(range(60))


def test_absent_is_not_logged_and_nan_is_logged() -> None:
    run = one([{"step": 1, "loss": 3.0}, {"step": 2, "loss": None}, {"step": 3, "loss": "n/a"}, {"step": 4, "loss": "NaN"}, {"step": 5, "loss": 2.0}])
    assert run["loss"].steps.tolist() == [1, 4, 5] and np.isnan(run["loss"].values[1])


def test_a_fractional_epoch_counts_no_steps() -> None:
    run = one([{"update": f"{0.416 * i:.3f}", "num_updates": str(10 * i), "loss": str(x)} for i, x in enumerate(FALLING)])
    assert run["loss"].steps.tolist() == list(range(0, 600, 10)) and len(run["update"]) == 60
    run = one([{"epoch": 0.01 * i, "loss": x} for i, x in enumerate(FALLING)])
    assert run["loss"].steps.tolist() == list(range(60)) and any("numbered from 0" in note for note in run.notes)


def test_of_two_counters_the_one_that_moves_on_every_row() -> None:
    run = one([{"iter": i, "step": i // 4, "loss": x} for i, x in enumerate(FALLING)])
    assert run["loss"].steps.tolist() == list(range(60))


def test_steps_as_shares_floats_and_dates() -> None:
    assert one([{"global_step/max_steps": f"{i}/547", "loss": x} for i, x in enumerate(FALLING)])["loss"].steps.tolist() == list(range(60))
    assert one([{"step": i * 1.0, "loss": x} for i, x in enumerate(FALLING)])["loss"].steps.tolist() == list(range(60))
    assert one([{"step": f"2024-01-{1 + i % 28:02d}", "loss": x} for i, x in enumerate(FALLING)])["loss"].steps.tolist() == list(range(60))
    steps = one([{"step": 1e308 if i == 30 else i, "loss": x} for i, x in enumerate(FALLING)])["loss"].steps
    assert len(steps) >= 59 and steps.max() == 59


def test_rows_without_a_step_have_that_of_the_row_before() -> None:
    rows = [row for i, x in enumerate(FALLING) for row in ({"step": 10 * i, "loss": x}, {"val_loss": x + 1} if i % 20 == 0 else {})]
    assert one(rows)["val_loss"].steps.tolist() == [0, 200, 400]


def test_runs_one_after_the_other_are_told_apart() -> None:
    first, second = runs([{"step": i, "loss": x} for _ in range(2) for i, x in enumerate(FALLING)])
    assert first["loss"].values.tolist() == second["loss"].values.tolist() == FALLING and first.path == "log#1"
    assert any("2 runs were told apart" in note for note in first.notes)


def test_a_run_that_dies_before_its_second_evaluation_is_a_run() -> None:
    rows = [{"step": 0, "val_loss": 11.0}, *({"step": i, "lr": 0.1} for i in range(50))]
    rows += [{"step": 0, "val_loss": 11.0}, *({"step": i, "lr": 0.1} for i in range(200)), {"step": 199, "val_loss": 4.0}]
    assert [len(run["loss"]) for run in runs(rows)] == [1, 2]


def test_a_mark_tells_runs_apart() -> None:
    found = runs([*({"loss": x} for x in FALLING), Mark("run", "a banner"), *({"loss": x} for x in FALLING[:7])])
    assert [len(run["loss"]) for run in found] == [60, 7]


def test_a_resume_supersedes_what_came_after_it() -> None:
    rows = [{"step": i, "loss": x} for i, x in enumerate(FALLING)]
    run = one([*rows[:40], Mark("note", "hello"), *({"step": i, "loss": FALLING[i] + 0.01} for i in range(30, 60))])
    assert run["loss"].steps.tolist() == list(range(60)) and run["loss"].values[35] == FALLING[35] + 0.01
    assert [(event.kind, event.step) for event in run.events] == [("resume", 30), ("note", 39)] or {e.kind for e in run.events} == {"resume", "note"}
    (lost,) = run.superseded
    assert lost["loss"].steps.tolist() == list(range(30, 40)) and lost["loss"].values.tolist() == FALLING[30:40]


def test_a_resume_that_repeats_the_very_same_losses() -> None:
    rows = [{"step": i, "loss": x} for i, x in enumerate(FALLING)]
    run = one(rows[:40] + rows[30:])
    assert [event.step for event in run.events] == [30] and len(run.superseded[0]["loss"]) == 10


def test_steps_that_start_over_with_each_epoch_are_numbered_through() -> None:
    rows = [{"epoch": i // 20, "step": i % 20, "loss": x} for i, x in enumerate(FALLING)]
    assert one(rows)["loss"].steps.tolist() == list(range(60))
    without = one([{"step": i % 20 + 1, "loss": x} for i, x in enumerate(FALLING)])
    assert without["loss"].steps.tolist() == list(range(1, 61)) and any("numbered through" in note for note in without.notes)


def test_two_writers_that_interleave_are_two_runs() -> None:
    rows = []
    for i in range(0, 60, 2):
        rows += [{"step": 10 * j, "loss": FALLING[j] + 0.001 * w} for w in (0, 1) for j in (i, i + 1)]
    first, second = runs(rows)
    assert first["loss"].steps.tolist() == second["loss"].steps.tolist() == list(range(0, 600, 10))
    assert first["loss"].values.tolist() == FALLING


def test_workers_that_all_print_the_same_are_one_run() -> None:
    run = one([{"step": i, "loss": x} for i, x in enumerate(FALLING) for _ in range(8)])
    assert run["loss"].values.tolist() == FALLING and any("were left out" in note for note in run.notes)


def test_micro_batches_of_one_step_are_points_of_their_own() -> None:
    run = one([{"step": i // 4, "loss": x} for i, x in enumerate(FALLING)])
    assert run["loss"].values.tolist() == FALLING and run["loss"].steps.tolist() == list(range(60))


def test_a_step_that_is_there_twice_counts_once() -> None:
    rows = [{"step": i, "loss": x} for i, x in enumerate(FALLING)]
    run = one([*rows[:30], {"step": 29, "loss": 2.5}, *rows[30:]])
    assert run["loss"].steps.tolist() == list(range(60)) and run["loss"].values[29] == 2.5


@pytest.mark.parametrize(("value", "what"), [(1.0, "clip value"), (0.0, "placeholder")])
def test_a_gradient_norm_that_never_moves_is_none(value: float, what: str) -> None:
    run = one([{"step": i, "loss": x, "grad_norm": value} for i, x in enumerate(FALLING)])
    assert "grad_norm" not in run and len(run["grad_norm (as logged)"]) == 60
    assert any(what in note for note in run.notes)


def test_a_norm_of_one_parameter_is_not_the_gradient_norm() -> None:
    assert "grad_norm" not in one([{"step": i, "loss": x, "grad_norm/w": x} for i, x in enumerate(FALLING)])


def test_skipped_steps_become_events() -> None:
    since_begin = one([{"step": 10 * i, "loss": x, "skipped": min(10 * i, 50)} for i, x in enumerate(FALLING)])
    assert [event.step for event in since_begin.events if event.kind == "step_skipped"] == list(range(1, 51))
    since_last = one([{"iteration": 10 * i, "lm loss": x, "number of skipped iterations": int(i == 3)} for i, x in enumerate(FALLING)])
    assert [event.step for event in since_last.events] == [30]


def test_nested_fields_lists_and_many_fields() -> None:
    run = one([{"step": i, "train": {"loss": x, "head": [1, 2]}, "box": list(range(100))} for i, x in enumerate(FALLING)])
    assert run.loss_key == "train/loss" and "train/head/1" in run.series and not any(name.startswith("box") for name in run)
    run = one([{"step": 0, "loss": 1.0} | {f"k{i}": 1.0 for i in range(5000)}])
    assert len(run) <= 4096 and any("were left out" in note for note in run.notes)


def test_a_run_without_a_loss_is_read_and_rows_without_numbers_are_not() -> None:
    run = one([{"step": i, "accuracy": x} for i, x in enumerate(FALLING)])
    assert "loss" not in run and run.loss_key is None and len(run["accuracy"]) == 60
    for rows in ([], [{"a": "b"}], [{"step": 1}], [{"a": 1.0}]):
        with pytest.raises(BadInput, match="^log was read as test"):
            runs(rows)


def test_integers_beyond_all_bounds() -> None:
    run = one([{"step": i, "loss": 10**400 if i == 3 else x} for i, x in enumerate(FALLING)])
    assert run["loss"].values[3] == math.inf


@pytest.mark.parametrize("apart", [2.0, -0.5])
def test_two_writers_that_log_in_turn_are_two_runs(apart: float) -> None:
    noise = np.random.default_rng(0).standard_normal((200, 2)) * 0.02
    levels = 3 + 7 * np.exp(-np.arange(200) / 50)
    first, second = runs([{"step": i, "loss": levels[i] + noise[i, w] + apart * w} for i in range(200) for w in (0, 1)])
    assert first["loss"].values.tolist() == (levels + noise[:, 0]).tolist()
    assert second["loss"].values.tolist() == (levels + noise[:, 1] + apart).tolist()
    assert first["loss"].steps.tolist() == second["loss"].steps.tolist() == list(range(200))


def test_writers_of_one_step_in_any_order_are_told_apart_by_level() -> None:
    rng = np.random.default_rng(1)
    levels = np.stack([4 + rng.standard_normal(200) * 0.02, 6 + rng.standard_normal(200) * 0.02])
    first, second = runs([{"step": i, "loss": levels[w, i]} for i in range(200) for w in rng.permutation(2)])
    assert sorted([first["loss"].values.tolist(), second["loss"].values.tolist()]) == levels.tolist()


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_many_micro_batches_of_one_step_are_no_writers(noise: float) -> None:
    losses = 3 + 7 * np.exp(-np.arange(800) / 200) + np.random.default_rng(2).standard_normal(800) * noise
    run = one([{"step": i // 4, "loss": x} for i, x in enumerate(losses)])
    assert run["loss"].values.tolist() == losses.tolist() and any("several times" in note for note in run.notes)


def test_a_file_with_the_newest_steps_first_is_read_from_its_end() -> None:
    run = one([{"step": i, "loss": x} for i, x in reversed(list(enumerate(FALLING)))])
    assert run["loss"].steps.tolist() == list(range(60)) and run["loss"].values.tolist() == FALLING
    assert any("newest" in note for note in run.notes)


def test_steps_that_count_down_are_no_other_writer() -> None:
    run = one([{"step": -i, "loss": x} for i, x in enumerate(FALLING)])
    assert run["loss"].values.tolist() == FALLING and run["loss"].steps.tolist() == list(range(60)) and len(run.notes) == 1
