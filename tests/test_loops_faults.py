"""What goes wrong in a loop, and in the lens: training goes on, the record says what it knows, each thing is said once."""

from __future__ import annotations

import errno
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from loops import observed, same
from torch import nn
from torch.utils.data import DataLoader, Dataset
from training import Decoder, gpt2, loss_of, one_step, tokens, update

import stabilitylens as sl
from stabilitylens.hooks import LensWarning
from stabilitylens.writers._append import Appender


def test_an_exception_in_the_loop_that_is_caught(tmp_path):
    def loop(attach):
        model, losses = Decoder(), []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        for i in range(3):
            x = tokens()
            if i == 1:
                with pytest.raises(IndexError):
                    loss_of(model, x + 1000)
            loss = one_step(model, optimizer, lens, x)
            lens.step(loss)
            losses.append(loss.detach())
        return model, losses

    run = observed(loop, tmp_path)
    assert run["loss"].steps.tolist() == [1, 2, 3]
    assert np.isfinite(run["resid_rms"].values).all()


class Interrupting(nn.Module):
    """Lets Ctrl-C arrive inside a forward."""

    now = False

    def forward(self, x):
        if self.now:
            raise KeyboardInterrupt
        return x


def test_ctrl_c_inside_a_forward_and_then_going_on(tmp_path):
    def loop(attach):
        model, losses = Decoder(), []
        model.blocks[1].drop = interrupting = Interrupting()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        for i in range(4):
            x = tokens()
            interrupting.now = i == 2
            try:
                loss = one_step(model, optimizer, lens, x)
            except KeyboardInterrupt:
                continue
            lens.step(loss)
            losses.append(loss.detach())
        return model, losses

    run = observed(loop, tmp_path)
    assert run["loss"].steps.tolist() == [1, 2, 3]
    assert np.isfinite(run["resid_rms"].values).all()


def test_ctrl_c_inside_a_forward_that_ends_the_training(tmp_path):
    model = Decoder()
    model.blocks[1].drop = Interrupting()
    model.blocks[1].drop.now = True
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with pytest.raises(KeyboardInterrupt), sl.attach(model, optimizer, tmp_path):
        loss_of(model, tokens())
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert torch.overrides._get_current_function_mode_stack() == []


def full_disk(monkeypatch, steps):
    plain = Appender.append

    def append(self, record):
        if steps():
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(self, record)

    monkeypatch.setattr(Appender, "append", append)


def test_a_full_disk_in_the_middle_of_training_is_said_once_and_training_goes_on(monkeypatch, tmp_path):
    def train(logdir):
        torch.manual_seed(0)
        model, losses = Decoder(), []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = sl.attach(model, optimizer, logdir, every=2)
        full_disk(monkeypatch, lambda: logdir.name == "full" and 3 <= lens.step_number <= 6)
        for _ in range(10):
            loss = one_step(model, optimizer, lens)
            lens.step(loss)
            losses.append(loss.detach())
        lens.close()
        return [*losses, *model.state_dict().values()]

    whole = train(tmp_path / "free")
    with pytest.warns(LensWarning, match="No space left on device") as said:
        assert same(whole, train(tmp_path / "full"))
    assert len([w for w in said if "recording a step" in str(w.message)]) == 1
    assert len(said) <= 2  # the scalars of a step, and its arrays
    free, full = sl.load(tmp_path / "free"), sl.load(tmp_path / "full")
    assert full["loss"].steps.tolist() == [1, 2, 7, 8, 9, 10]
    for name in ("max_attn_logit", "resid_rms", "grad_norm/layer"):
        kept = np.isin(free[name].steps, full[name].steps)
        assert full[name].steps.tolist() == [1, 2, 8, 10]
        assert np.array_equal(free[name].values[kept], full[name].values), name


BROKEN = {
    "stabilitylens.hooks.lens.compute": "metrics",
    "stabilitylens.hooks.slots.Slots.add": "activations",
    "stabilitylens.hooks.taps.statistics": "attention",
    "stabilitylens.hooks.parameters.norm_moments": "parameters",
    "stabilitylens.hooks.parameters.sums_of_squares": "norms",
    "stabilitylens.hooks.record.Recorder.step": "recorder",
    "stabilitylens.hooks.record.Recorder.sample": "arrays",
    "stabilitylens.hooks.sample.Layout.of": "layout",
}


@pytest.mark.filterwarnings("ignore::stabilitylens.hooks.guard.LensWarning")
@pytest.mark.parametrize("what", BROKEN)
def test_a_lens_that_breaks_is_counted_and_the_training_stays_what_it_is(what, monkeypatch, tmp_path):
    def train(logdir):
        torch.manual_seed(0)
        model, losses = Decoder(), []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = sl.attach(model, optimizer, logdir, every=100 if BROKEN[what] == "norms" else 1) if logdir else None
        for _ in range(4):
            loss = loss_of(model, tokens())
            update(loss, optimizer, lens)
            losses.append(loss.detach())
        return [*losses, *model.state_dict().values()], lens

    bare, _ = train(None)

    def broken(*_a, **_k):
        raise RuntimeError("broken")

    monkeypatch.setattr(what, broken)
    left, lens = train(tmp_path)
    assert same(bare, left)
    assert max(lens.guard.failures.values()) >= 3
    lens.close()


def test_warnings_turned_into_errors_do_not_stop_the_training(tmp_path):
    program = f"""
import sys, warnings
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from training import *
torch.manual_seed(0)
warnings.simplefilter("error")
model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
lens = sl.attach(model, optimizer, {str(tmp_path)!r}, every=1)
sl.attach(model, optimizer, {str(tmp_path)!r}, every=1)
for step in range(3):
    loss = loss_of(model, tokens())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    lens.step(loss if step else None)
print(dict(lens.guard.failures))
lens.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip().splitlines()[-1] == "{}"
    assert "observed already" in done.stderr
    assert "call lens.step(loss)" in done.stderr
    assert sl.load(tmp_path)["resid_rms"].steps.tolist() == [1, 2, 3]


class Rows(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.full((8,), i)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader_write_nothing(context, tmp_path):
    torch.manual_seed(0)
    model = Decoder(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with sl.attach(model, optimizer, tmp_path, every=1) as lens:
            for _epoch in range(2):
                for batch in DataLoader(Rows(), 4, num_workers=2, multiprocessing_context=context):
                    lens.step(one_step(model, optimizer, lens, batch))
            assert not lens.guard.failures
    run = sl.load(tmp_path)
    assert run["loss"].steps.tolist() == list(range(1, 7))
    assert len(list((tmp_path / "stabilitylens").iterdir())) == 2


def test_a_model_that_was_compiled_before_is_said(tmp_path):
    model = gpt2()
    model.compile(backend="eager")
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.warns(LensWarning, match="attach before torch.compile"):
        sl.attach(model, optimizer, tmp_path).close()
