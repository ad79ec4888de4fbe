"""The general reader against what many programs print: every point, its loss and its step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from text_formats import FORMATS, LOSS
from text_formats_more import MORE

from stabilitylens.readers import read_all


@pytest.mark.parametrize("name", [*FORMATS, *MORE])
def test_every_point_is_read(name: str, tmp_path: Path) -> None:
    log = FORMATS.get(name) or MORE[name]
    path = tmp_path / "train.log"
    path.write_bytes(log.text().encode())
    (run,) = read_all(path)
    loss = run.series["loss"]
    assert loss.values == pytest.approx(LOSS, abs=6e-4)
    if log.steps is not None:
        assert loss.steps.tolist() == log.steps
    assert (np.diff(loss.steps) > 0).all()


@pytest.mark.parametrize("name", [name for name, log in FORMATS.items() if "\r" not in log.text() and log.end == "\n"])
def test_line_ends_of_windows_change_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(FORMATS[name].text().replace("\n", "\r\n").encode())
    assert read_all(path)[0].series["loss"].values == pytest.approx(LOSS, abs=1e-4)


@pytest.mark.parametrize("name", ["megatron", "nanogpt", "huggingface", "torchtitan", "olmo", "modded_nanogpt", "fairseq"])
def test_a_script_and_a_configuration_at_the_head_are_passed_over(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(_SCRIPT + _CONFIG + FORMATS[name].text())
    (run,) = read_all(path)
    assert run.series["loss"].values == pytest.approx(LOSS, abs=1e-4)


_SCRIPT = '''\
import torch
from torch import nn

class Config:
    lr: float = 0.1
    num_iterations: int = 5100
    val_loss_every: int = 125

step = 0
loss = 0.0
best_val_loss = 1e9
for step in range(100):
    loss = model(x, y) / 8
    train_loss += loss.item()
    print(f"step:{step}/100 loss:{loss:.4f}")
    if step % 10 == 0:
        val_loss = 0.0
        loss = 3.5
print0(f"peak memory consumption: {torch.cuda.max_memory_allocated() // 1024 // 1024} MiB")
====================================================================================================
'''
_CONFIG = "".join(f"  {name} {'.' * 40} {i}\n" for i, name in enumerate(["loss_scale", "train_iters", "seed", "log_interval"] * 350))
