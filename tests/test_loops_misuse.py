"""What a lens is told that makes no sense, or at the wrong time: each is said once, and the rest is recorded."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from training import Decoder, loss_of, one_step

import stabilitylens as sl
from stabilitylens.hooks import LensWarning


@pytest.fixture
def trained(tmp_path):
    torch.manual_seed(0)
    model = Decoder(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        yield model, optimizer, lens, tmp_path


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_recorded_and_said_once(bad, trained):
    model, optimizer, lens, logdir = trained
    with pytest.warns(LensWarning, match="at step 2; it is recorded, and training goes on") as said:
        for step in range(1, 9):
            lens.step(one_step(model, optimizer, lens).detach() * (bad if step in (2, 3) else 1))
    assert len(said) == 1
    lens.close()
    assert np.isfinite(sl.load(logdir)["loss"].values).tolist() == [True, False, False, *[True] * 5]
    assert [i.kind for i in sl.postmortem(logdir).incidents if i.metric == "loss"] == ["nonfinite"]


def test_no_loss_is_said_once_and_the_rest_is_recorded(trained):
    model, optimizer, lens, logdir = trained
    with pytest.warns(LensWarning, match=r"call lens.step\(loss\)") as said:
        for _ in range(3):
            one_step(model, optimizer, lens)
            lens.step(loss=None)
    assert len(said) == 1
    lens.close()
    run = sl.load(logdir)
    assert "loss" not in run
    assert run["grad_norm"].steps.tolist() == [1, 2, 3]
    sl.postmortem(logdir)


def test_a_loss_of_several_elements_is_averaged_and_said_once(trained):
    model, optimizer, lens, logdir = trained
    with pytest.warns(LensWarning, match="pass a scalar") as said:
        for _ in range(2):
            one_step(model, optimizer, lens)
            lens.step(torch.tensor([1.0, 2.0, 6.0]))
    assert len(said) == 1
    lens.close()
    assert sl.load(logdir)["loss"].values.tolist() == [3, 3]


def test_scalars_of_the_loops_own_that_are_no_numbers_cost_nothing_else(trained):
    model, optimizer, lens, logdir = trained
    with pytest.warns(LensWarning, match="no single number") as said:
        for _ in range(2):
            loss = one_step(model, optimizer, lens)
            lens.step(loss, tokens=torch.tensor(32), pair=torch.zeros(2), word="a", nothing=None, one=np.float32(1))
    assert len(said) == 3
    lens.close()
    run = sl.load(logdir)
    assert run["loss"].steps.tolist() == [1, 2]
    assert run["tokens"].values.tolist() == [32, 32]
    assert run["one"].values.tolist() == [1, 1]
    assert not {"pair", "word", "nothing"} & set(run)


def test_all_targets_ignored_is_a_nan_loss_with_healthy_weights(trained):
    model, optimizer, lens, logdir = trained

    def nothing(model, x):
        model(x)
        return F.cross_entropy(model.head(model.norm(model.embedding(x))).flatten(0, 1), torch.full((x.numel(),), -100))

    with pytest.warns(LensWarning, match="the loss is nan at step 2"):
        for step in range(1, 4):
            lens.step(one_step(model, optimizer, lens, loss=nothing if step == 2 else loss_of))
    lens.close()
    run = sl.load(logdir)
    assert np.isnan(run["loss"].values).tolist() == [False, True, False]
    assert run["grad_norm"].values[1] == 0
    assert np.isfinite(run["param_norm/layer"].values).all()


def test_attaching_twice_keeps_the_first_lens(trained, tmp_path):
    model, optimizer, lens, logdir = trained
    hooks = [len(m._forward_hooks) for m in model.modules()]
    with pytest.warns(LensWarning, match="observed already"):
        again = sl.attach(model, optimizer, tmp_path / "other")
    assert again is lens
    assert hooks == [len(m._forward_hooks) for m in model.modules()]
    assert not (tmp_path / "other").exists()
    lens.step(one_step(model, optimizer, lens))
    lens.close()
    with sl.attach(model, optimizer, tmp_path / "other") as second:
        assert second is not lens


def test_two_models_in_one_folder_are_warned_of(trained):
    _, _, lens, logdir = trained
    other = torch.nn.Linear(2, 2)
    with pytest.warns(LensWarning, match="a folder of its own"):
        sl.attach(other, torch.optim.SGD(other.parameters(), 0.1), logdir).close()
    lens.close()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sl.attach(other, torch.optim.SGD(other.parameters(), 0.1), logdir).close()
    assert not any("a folder of its own" in str(warning.message) for warning in said)


def test_a_step_after_closing_is_said_once(trained):
    model, optimizer, lens, _ = trained
    lens.close()
    lens.close()
    with pytest.warns(LensWarning, match="attach again") as said:
        for _ in range(2):
            lens.step(one_step(model, optimizer, lens))
    assert len(said) == 1
