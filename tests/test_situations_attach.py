"""What people forget to tell a lens, or tell it wrongly: each is one sentence, and none is a wrong number."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training import Decoder, loss_of, tokens

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.guard import LensWarning


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Decoder(depth=2)
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


@pytest.mark.parametrize("ready", [True, False])
def test_a_gradient_scaler_that_was_not_passed_is_noticed_before_a_scaled_number_is_recorded(ready: bool, tmp_path: Path) -> None:
    def train(logdir: Path, passed: bool) -> sl.Run:
        model, optimizer = made()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with sl.attach(model, optimizer, logdir, every=1, scaler=scaler if passed else None) as lens:
            for _ in range(3):
                scaler.scale(loss_of(model, tokens())).backward()
                if ready:
                    lens.grads_ready()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                lens.step(1.0)
        return sl.load(logdir)

    with pytest.warns(LensWarning, match="was not passed to attach"):
        forgotten = train(tmp_path / "forgotten", passed=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = train(tmp_path / "told", passed=True)
    for name in ("grad_norm", "grad_norm_clipped", "resid_grad_norm", "clip_coef", "grad_rms/layer"):
        if name in told:
            a, b = forgotten[name], told[name]
            both = np.isin(b.steps, a.steps)
            np.testing.assert_allclose(a.values, b.values[both], rtol=1e-5, err_msg=name)
            assert len(a.steps) >= 2


def test_a_step_without_any_gradient_is_said(tmp_path: Path) -> None:
    model, optimizer = made()
    with pytest.warns(LensWarning, match="no trainable parameter had a gradient") as said, sl.attach(model, optimizer, tmp_path, every=1) as lens:
        for _ in range(3):
            loss = loss_of(model, tokens())
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
            lens.step(loss)
    assert sum("no trainable parameter" in str(w.message) for w in said) == 1
    reasons = dict(sl.load(tmp_path).header.coverage.not_observed)
    assert reasons["adam_rms"] == reasons["grad_norm"] == "no parameter had a gradient when the optimizer stepped"


def test_a_loop_that_never_ends_a_step_is_told_so(tmp_path: Path) -> None:
    model, optimizer = made()
    lens = sl.attach(model, optimizer, tmp_path)
    loss_of(model, tokens()).backward()
    optimizer.step()
    with pytest.warns(LensWarning, match=r"lens.step\(\) was never called"):
        lens.close()


def test_a_state_of_something_else_is_said_and_changes_nothing(tmp_path: Path) -> None:
    model, optimizer = made()
    with sl.attach(model, optimizer, tmp_path) as lens:
        with pytest.warns(LensWarning, match="given no state of a lens"):
            lens.load_state_dict({})
        assert lens.step_number == 1
        lens.step(1.0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"metrics": 5}, "is no list of metrics"), ({"recipe": "x"}, "needs a Recipe or a dictionary"),
        ({"recipe": {"foo": 1}}, "has foo, which no rule knows"), ({"scaler": 5}, "needs a torch.amp.GradScaler"),
        ({"total_steps": "abc"}, "is no number of optimizer steps"), ({"total_steps": -5}, "is no number of optimizer steps"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_sentence(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=sentence):
        sl.attach(*made(), tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_lazy_modules_have_to_be_run_first(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(BadInput, match="lazy modules"):
        sl.attach(model, [], tmp_path)
