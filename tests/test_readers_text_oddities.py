"""What real text logs hold beside plain numbers, one oddity a test."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from stabilitylens.errors import BadInput
from stabilitylens.readers import read_all
from stabilitylens.readers._source import lines
from stabilitylens.readers._text_rows import rows_of
from stabilitylens.run import Run


@pytest.fixture
def runs(tmp_path: Path):
    def read(text: str | bytes) -> list[Run]:
        path = tmp_path / "a.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_all(path)

    return read


@pytest.fixture
def run(runs):
    return lambda text: runs(text)[0]


@pytest.mark.parametrize("word", ["nan", "NaN", "NAN", "-nan", "n/a", "N/A", "None", "null", "No Log", "nan(ind)", "nanxxx", "Nan"])
def test_every_spelling_of_nan(run, word: str) -> None:
    loss = run(f"step 1 loss: 3.0 lr: 0.1\nstep 2 loss: {word} lr: 0.1\nstep 3 loss: 2.5 lr: 0.1\n")["loss"]
    assert loss.steps.tolist() == [1, 2, 3]
    assert np.isnan(loss.values).tolist() == [False, True, False]


@pytest.mark.parametrize("word", ["inf", "Inf", "Infinity", "infinity", "-Infinity", "INF"])
def test_every_spelling_of_infinity(run, word: str) -> None:
    assert np.isinf(run(f"step 1 loss: 3.0\nstep 2 loss: {word}\nstep 3 loss: 2.5\n")["loss"].values[1])


@pytest.mark.parametrize(
    ("text", "value"),
    [("85.8G", 8.58e10), ("11.5K", 11500), ("1,234,567.5", 1234567.5), ("-0.0", 0), ("1e308", 1e308), (".5", 0.5), ("+2.5", 2.5), ("1.0E-4", 1e-4), ("12.5%", 12.5),
     ("23.5067 (26.3565)", 23.5067), ("tensor(0.25, device='cuda:0')", 0.25), ("np.float32(0.75)", 0.75), ("'1.5'", 1.5), ("12345678901234567890123456789012345678901234.5", 1.2345678901234568e43)],
)  # fmt: skip
def test_every_spelling_of_a_number(run, text: str, value: float) -> None:
    found = run(f"step 1 loss: 3.0, thing: {text}, end\nstep 2 loss: 3.0, thing: {text}, end\n")
    assert found["thing"].values == pytest.approx([value, value])


def test_a_running_mean_is_a_series_of_its_own(run) -> None:
    found = run("[10/20] loss: 3.0 (4.0)\n[20/20] loss: 2.0 (3.5)\n")
    assert found["loss"].values.tolist() == [3.0, 2.0]
    assert found["loss/mean"].values.tolist() == [4.0, 3.5]


def test_nul_bytes_a_byte_order_mark_and_utf16(runs) -> None:
    text = "step 1 loss 3.0\nstep 2 loss 2.0\n"
    for raw in (b"\xef\xbb\xbf" + text.encode(), text.encode() + b"\0\0\n", b"\xff\xfe" + text.encode("utf-16-le")):
        assert runs(raw)[0]["loss"].values.tolist() == [3.0, 2.0]


def test_compressed(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(b"step 1 loss 3.0\nstep 2 loss 2.0\n"))
    assert read_all(path)[0]["loss"].values.tolist() == [3.0, 2.0]


def test_colours_are_no_text(run) -> None:
    assert run("\x1b[31mstep: 1  \x1b[1;32mloss:  3.5\x1b[0m\n\x1b[31mstep: 2  \x1b[1;32mloss:  2.5\x1b[0m\n")["loss"].values.tolist() == [3.5, 2.5]


def test_dates_clocks_levels_and_places_are_no_values(run) -> None:
    found = run("".join(f"[2025-04-09 09:08:38,185] [INFO] [train.py:96:log] 12:30:01 eta: 1 day, 3:04:05 step {i} loss {9 - i}\n" for i in (1, 2)))
    assert set(found) == {"loss"}


def test_units_times_become_seconds_and_totals_are_left(run) -> None:
    found = run("".join(f"step {i}/500 (1.00%) | loss: {9 - i} | dt: 250.00ms | mem: 9.46GiB\n" for i in (1, 2)))
    assert found["step_time"].values.tolist() == [0.25, 0.25]
    assert found["loss"].steps.tolist() == [1, 2]


def test_the_last_frame_of_a_bar_counts(run) -> None:
    frames = [f"\rtrain:  {i}%|  | {i}/100 [00:18<60:11:40,  9.23it/s, loss={loss}]" for i in (1, 2, 3) for loss in (9.0 - i, 8.5 - i)]
    assert run("".join(frames))["loss"].values.tolist() == [7.5, 6.5, 5.5]


def test_a_step_drawn_twice_is_one_and_full_bars_of_several_epochs_are_several(run) -> None:
    text = "".join(f"100%|██| 10/10 [00:01<00:00, 2.00it/s, loss={loss}]\n" for loss in (3.5, 3.5, 2.5, 2.5, 1.5))
    assert run(text)["loss"].values.tolist() == [3.5, 2.5, 1.5]


def test_workers_draw_one_bar(run) -> None:
    frames = [f"train:  {i}%|  | {i}/100 [00:18<60:11:4{w},  9.23it/s, loss={9.0 - i + j / 10}]\n" for i in (1, 2, 3) for j in (1, 0) for w in range(8)]
    assert run("".join(frames))["loss"].values.tolist() == [8.0, 7.0, 6.0]


def test_ranks_that_print_the_same_line_are_one(run) -> None:
    text = "".join(f"[rank{r}]: step: {i} loss: {30 - i}.5\n" for i in range(1, 20) for r in range(8))
    assert run(text)["loss"].values.tolist() == [30.5 - i for i in range(1, 20)]


def test_a_bar_without_values_gives_the_step(run) -> None:
    text = "".join(f"\r {i}%| | {2500 + i}/9000 [3:15:13<10:06:35,  4.59s/it]\n{{'loss': {9 - i}, 'epoch': 0.24}}\n" for i in range(1, 5))
    assert run(text)["loss"].steps.tolist() == [2501, 2502, 2503, 2504]


def test_bars_of_loading_give_none(run) -> None:
    text = "".join(f"Map: {i}0%| | {i}00/1000 [00:01<00:01, 99it/s]\n{{'loss': {9 - i}, 'epoch': 0.24}}\n" for i in range(1, 5))
    assert run(text)["loss"].steps.tolist() == [0, 1, 2, 3]


def test_bars_of_epochs_are_no_steps_of_epochs(run) -> None:
    text = "".join(f"\r 99%| | {298 + i % 2}/300 [00:01<00:01, 99it/s]\nEpoch {i:04d} | Ave Loss: {9 - i}\n" for i in range(6))
    assert run(text)["loss"].steps.tolist() == list(range(6))


def test_a_rounded_epoch_is_no_step(run) -> None:
    text = "".join(f"{{'loss': {9 - i}, 'grad_norm': nan, 'epoch': {0.01 * (i // 3):.2f}}}\n" for i in range(9))
    assert run(text)["loss"].steps.tolist() == list(range(9))


def test_a_fractional_epoch_called_update_is_no_step(run) -> None:
    text = "".join(f'[train_inner][INFO] - {{"epoch": 1, "update": {i / 3:.3f}, "loss": "{9 - i}.5", "num_updates": "{200 * i}"}}\n' for i in range(1, 6))  # noqa: B907
    found = run(text)
    assert (found.format, found["loss"].steps.tolist()) == ("fairseq", [200, 400, 600, 800, 1000])


def test_an_epoch_s_average_is_a_summary(run) -> None:
    text = "".join(
        f"| INFO | train_inner | epoch 001: {i} / 9 loss={9 - i}, num_updates={i}\n| INFO | train | epoch 001 | loss 99.5 | num_updates {i}\n" for i in range(1, 6)
    )
    found = run(text)
    assert found["loss"].values.tolist() == [8, 7, 6, 5, 4]
    assert set(found["epoch_loss"].values.tolist()) == {99.5}


def test_of_two_counters_the_one_that_moves_counts(run) -> None:
    text = "".join(f"iter {i} step {i // 8}: loss {9 + i % 3}.5, iter time: 1106.53ms\n" for i in range(1, 30))
    assert run(text)["loss"].steps.tolist() == list(range(1, 30))


def test_counters_that_start_over_with_each_epoch_go_on(run) -> None:
    text = "".join(f"Epoch: [{e}]  [{i}/30]  loss: {9 - e}.{i}\n" for e in range(3) for i in (0, 10, 20))
    assert run(text)["loss"].steps.tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80]


def test_two_runs_in_one_file(runs) -> None:
    text = "".join(f"step {i}/40 | loss: {10 - i / 8 + 0.1 * run}\n" for run in range(2) for i in range(40))
    assert [len(found["loss"]) for found in runs(text)] == [40, 40]


def test_evaluation_beside_training(run) -> None:
    text = "".join(f"Train: 1 [{i}/90] Loss: {9 - i}.0\nTest: [{i}/9] Loss: 77.0\nTest set: Average loss: 66.0\n[valid] step {i} loss 55.0\n" for i in range(1, 6))
    found = run(text)
    assert found["loss"].values.tolist() == [8, 7, 6, 5, 4]
    assert {name for name in found if name.startswith("val/")} == {"val/Loss", "val/Average loss", "val/loss"}


def test_several_losses_in_one_line(run) -> None:
    line = " iteration {0}/ 99 | consumed samples: 4 | lm loss: {1}.5E+00 | load_balancing_loss: 1.2E+00 | mtp_1 loss: 1.1E+00 | loss scale: 1.0 | grad norm: 0.{0} |\n"
    found = run("".join(line.format(i, 9 - i) for i in range(1, 6)))
    assert (found.loss_key, found["loss"].values.tolist()) == ("lm loss", [8.5, 7.5, 6.5, 5.5, 4.5])


_MEGATRON = (
    " iteration {0:8d}/ 1000 | consumed samples: 40 | elapsed time per iteration (ms): 356.2 | learning rate: 0.000E+00 | global batch size: 4 |{1} loss scale: 32768.0 |"
    " number of skipped iterations: {2:3d} | number of nan iterations:   0 |\n"
)


def test_megatron_leaves_a_nan_loss_out(run) -> None:
    text = "".join(_MEGATRON.format(i, f" lm loss: {9 - i}.0E+00 |" if i < 4 else "", 0) for i in range(1, 7))
    loss = run(text)["loss"]
    assert np.isnan(loss.values).tolist() == [False] * 3 + [True] * 3
    assert loss.steps.tolist() == [1, 2, 3, 4, 5, 6]


def test_megatron_never_prints_a_loss(run) -> None:
    found = run("".join(_MEGATRON.format(i, "", 0) for i in range(5426, 5429)))
    assert (found.loss_key, np.isnan(found["loss"].values).all(), len(found["loss"])) == ("lm loss", True, 3)


def test_megatron_has_no_loss_where_all_was_skipped(run) -> None:
    text = "".join(_MEGATRON.format(10 * i, f" lm loss: {9 - i}.0E+00 |" if i > 1 else "", 10 if i == 1 else 0) for i in range(1, 5))
    found = run(text)
    assert found["loss"].steps.tolist() == [20, 30, 40]
    assert sum(event.kind == "step_skipped" for event in found.events) == 10


def test_a_last_line_that_is_cut_gives_what_it_has(run) -> None:
    text = "".join(_MEGATRON.format(i, f" lm loss: {9 - i}.0E+00 |", 0) for i in range(1, 5))
    assert len(run(text[:-60])["loss"]) == 4
    assert len(run(text + " iteration        5/ 1000 | consumed sam")["loss"]) == 4


def test_deepspeed_that_skips_every_step(run) -> None:
    text = "".join(f"Epoch 7, Loss: 0.9{i % 7}\n[Rank 0] step={i}, skipped={i}, lr=[1e-05, 1e-05], mom=[(0.9, 0.99), (0.9, 0.99)]\n" for i in range(1, 21))
    found = run(text)
    assert len(found["loss"]) == 20
    assert found["skipped"].values.tolist() == list(range(1, 21))
    assert found["lr"].values.tolist() == [1e-05] * 20


def test_gradient_overflow_is_a_skipped_step(run) -> None:
    found = run("step 1 loss 3.0\nGradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 256.0\nstep 2 loss 2.5\nstep 3 loss 2.0\n")
    assert [(event.kind, event.step) for event in found.events] == [("step_skipped", 1)] or [event.step for event in found.events] == [2]


@pytest.mark.parametrize("sentence", ["ERROR:tensorflow:Model diverged with loss = NaN.", "Loss is nan, stopping training", "FloatingPointError: Loss became infinite or NaN at iteration=2!"])
def test_a_sentence_tells_of_nan(run, sentence: str) -> None:
    loss = run(f"INFO:tensorflow:loss = 1.87, step = 100 (18.2 sec)\nINFO:tensorflow:loss = 1.85, step = 200 (18.2 sec)\n{sentence}\n")["loss"]
    assert loss.steps.tolist() == [100, 200, 201]
    assert math.isnan(loss.values[-1])


def test_a_bar_that_shows_nan_beside_a_finite_loss(run) -> None:
    text = "".join(f"Epoch 0:   3%|▎  | {i}/20101 [2:12:19<76:15:08, 14.05s/it, loss=nan, v_num=, reduced_train_loss={9 - i}.910, global_step={i}.0, " for i in range(1, 6))
    found = run(text)
    assert (found.loss_key, len(found["loss"])) == ("reduced_train_loss", 5)


def test_all_records_on_one_line(run) -> None:
    text = "".join(f"{{'loss': {9 - i}, 'learning_rate': 1e-05, 'epoch': 0.0{i}}}" for i in range(1, 6))
    assert run(text)["loss"].values.tolist() == [8, 7, 6, 5, 4]


def test_a_long_configuration_adds_no_series(run) -> None:
    config = "".join(f"  some_parameter_{i}: {i}\n" for i in range(1400)) + '{\n  "n_embd": 256,\n  "dropout": 0.0\n}\n'
    assert set(run(config + "".join(f"step {i} loss {9 - i}\n" for i in range(1, 6)))) == {"loss"}


def test_lines_that_are_no_metrics_are_no_log(runs) -> None:
    for text in ("learning_rate: 0.1\nepochs: 3\nloss: mse\n" * 3, "Resolved 183 packages in 0.72ms\n" * 20, "import os\nloss = 0.0\n", "plain prose without any number\n" * 50):
        with pytest.raises(BadInput):
            runs(text)


def test_a_few_points_are_enough(run) -> None:
    assert run("Validation loss 6312:  0.149928  \n")["loss"].values.tolist() == [0.149928]


def test_a_huge_line_is_read_in_bounded_pieces(run) -> None:
    text = "step 1 loss 3.0\n" + "x1=1 " * 2_000_000 + "\nstep 2 loss 2.0\n"
    assert run(text)["loss"].values.tolist() == [3.0, 2.0]


def test_rows_are_streamed(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"step {i} loss 2.0\n" for i in range(200_000)))
    rows = rows_of(lines(path))
    assert next(rows) == {"step": 0.0, "loss": 2.0}
