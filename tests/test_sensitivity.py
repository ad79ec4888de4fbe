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


def linear() -> nn.Linear:
    return nn.Linear(4, 3)


BATCH = (torch.ones(8, 4), torch.zeros(8, dtype=torch.long))
ONE = linear()
SLIPS: dict[str, tuple[dict[str, object], str]] = {
    "a list for data": ({"data": [BATCH]}, "a list as data; give a function"),
    "a generator for data": ({"data": (BATCH for _ in range(3))}, "a generator as data; give a function"),
    "data that returns nothing": ({"data": lambda: None}, "data\\(\\) returned a NoneType"),
    "a model for a factory": ({"make_model": linear()}, "make_model is a model"),
    "no factory": ({"make_model": 3}, "an int as make_model; give a function"),
    "a factory of none": ({"make_model": lambda: None}, "returned a NoneType"),
    "one model for all": ({"make_model": lambda: ONE}, "the same model twice"),
    "one learning rate": ({"lrs": 1e-3}, "not 0.001; give a list"),
    "words": ({"lrs": ["a"]}, "not \\['a'\\]; give a list"),
    "no learning rates": ({"lrs": None}, "not None; give a list"),
    "a negative warm-up": ({"warmup": -3}, "warmup is -3"),
    "half a warm-up": ({"warmup": 2.5}, "warmup is 2.5"),
    "no sampling": ({"every": 0}, "every is 0"),
    "a norm of zero": ({"max_grad_norm": 0}, "max_grad_norm is 0; .* None for no clipping"),
    "an optimizer of its own": ({"optimizer": torch.optim.SGD(linear().parameters(), 0.1)}, "as optimizer; give its class"),
    "a loss of its own": ({"loss": 3.0}, "a float as loss"),
    "a loss a row": ({"loss": lambda model, batch: model(batch[0]).sum(1)}, "a tensor of shape \\(8,\\)"),
    "a loss without its graph": ({"loss": lambda model, batch: 3.0}, "loss returned a float"),
    "batches of inputs": ({"data": lambda: [BATCH[0]]}, "a batch is a Tensor, .* give loss="),
    "batches with names": ({"data": lambda: [{"x": 1, "y": 2}]}, "a batch is a dict"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_are_one_sentence(slip: str):
    given, says = SLIPS[slip]
    with pytest.raises(BadInput, match=says):
        sl.lr_sensitivity(**{"make_model": linear, "data": lambda: [BATCH] * 3, "lrs": [1e-3, 1e-2]} | given)  # type: ignore[arg-type]


def test_data_that_gives_fewer_batches_later_is_said():
    left = iter([BATCH] * 5)
    with pytest.raises(BadInput, match="3 batches at first and 2 at learning rate 0.01"):
        sl.lr_sensitivity(linear, lambda: [batch for _, batch in zip(range(3), left, strict=False)], [1e-3, 1e-2])


def test_learning_rates_that_are_nearly_the_same_have_their_own_folders(tmp_path: Path):
    found = sl.lr_sensitivity(linear, lambda: [BATCH] * 3, [0.01, 0.010000001, 0.1], logdir=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lr_0.01", "lr_0.010000001", "lr_0.1"}
    assert [len(run["loss"].values) for run in found.runs] == [3, 3, 3]


@pytest.mark.parametrize(
    ("steps", "scale", "says"), [(1, 1.0, "each run took one step"), (4, math.nan, "not finite from the first step"), (4, -1.0, "no run ended below")]
)
def test_why_there_is_no_number_is_said(steps: int, scale: float, says: str):
    class Worse(torch.optim.SGD):
        def __init__(self, parameters: object, lr: float) -> None:
            super().__init__(parameters, lr, maximize=True)  # type: ignore[arg-type]

    optimizer = Worse if scale < 0 else torch.optim.SGD
    batch = (BATCH[0] * abs(scale), BATCH[1])
    found = sl.lr_sensitivity(linear, lambda: [batch] * steps, [1e-3, 1e-2], optimizer=optimizer)
    assert math.isnan(found.value) and says in found.why_not and f"LR sensitivity not defined: {found.why_not}" in str(found)


def test_rules_that_say_nothing_about_the_learning_rate_stand_apart():
    found = sl.lr_sensitivity(lambda: Transformer(CHOICES), text, [0.1, 1e-3], warmup=0, every=6)
    assert found.everywhere["SL602"] == "the recipe" and found.first_fired["SL201"] == 0.1
    assert not set(found.everywhere) & set(found.first_fired) and found.why_not == ""
    lines = str(found).splitlines()
    assert all("SL602" not in line for line in lines[:3]) and any("whatever the learning rate, of the recipe: SL602" in line for line in lines)
