"""lr_sensitivity: Wortsman's number in closed form, and a sweep over a real model."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.sweep import sensitivity
from stabilitylens.reproductions import Choices, Transformer
from stabilitylens.reproductions._data import data

CHOICES = Choices(depth=2, width=32, context=32)


def text(steps: int = 60):
    return data("text", steps, 8, CHOICES.context, CHOICES.vocabulary, 0)


def test_the_number_in_closed_form():
    assert sensitivity([3.0, 2.0, 9.0, math.inf], 5.0) == pytest.approx((1 + 0 + 3 + 3) / 4)
    assert sensitivity([2.0, 2.0], 5.0) == 0.0
    assert math.isnan(sensitivity([6.0, math.inf], 5.0))


def test_a_sweep_over_a_transformer(tmp_path: Path):
    torch.manual_seed(3)
    found = sl.lr_sensitivity(lambda: Transformer(CHOICES), text, [0.1, 1e-3], warmup=6, logdir=tmp_path, every=6)
    assert found.lrs.tolist() == [1e-3, 0.1] and found.value == sensitivity(found.losses, found.initial_loss) >= 0
    assert found.initial_loss == pytest.approx(math.log(256), abs=0.5)
    assert found.max_attn_logit[1] > 100 > found.max_attn_logit[0] and found.attn_entropy_ratio[1] < found.attn_entropy_ratio[0]
    assert found.first_fired["SL201"] == 0.1
    assert sl.load(tmp_path / "lr_0.1")["loss"].values.tolist() == found.runs[1]["loss"].values.tolist()
    assert "SL201" in str(found) and "LR sensitivity" in str(found)


def test_each_run_starts_from_the_same_weights_and_a_model_without_attention_is_fine():
    batch = (torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
    found = sl.lr_sensitivity(lambda: nn.Linear(4, 3), lambda: [batch] * 20, [1e-3, 1e-2, 1e-1])
    assert len({run["loss"].values[0] for run in found.runs}) == 1
    assert (np.diff(found.losses) < 0).all() and np.isnan(found.max_attn_logit).all() and np.isnan(found.attn_entropy_ratio).all()


@pytest.mark.parametrize("lrs", [[1e-3], [1e-3, 1e-3], [0.0, 1e-3], [-1.0, 1.0], []])
def test_too_few_learning_rates_are_said(lrs: list[float]):
    with pytest.raises(BadInput, match="at least two different positive"):
        sl.lr_sensitivity(lambda: nn.Linear(4, 3), list, lrs)


def test_data_that_is_used_up_is_said():
    with pytest.raises(BadInput, match="fresh iterator"):
        sl.lr_sensitivity(lambda: nn.Linear(4, 3), list, [1e-3, 1e-2])
