"""Which rows, data or state, and which module: on incidents whose cause is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from training import Decoder

import stabilitylens as sl
from stabilitylens.hooks.blackbox.rows import row, row_count
from stabilitylens.hooks.blackbox.sigma import sigma_above

STEPS = 40


def counting(step, rows=8):
    """Sequences that count upwards, which is quickly learnt."""
    generator = torch.Generator().manual_seed(step)
    return (torch.randint(0, 64, (rows, 1), generator=generator) + torch.arange(16)) % 64


def parts():
    torch.manual_seed(0)
    model = Decoder(dropout=0.0).train()
    return model, torch.optim.AdamW(model.parameters(), 3e-3)


def step_fn(model, optimizer, batches, lens=None):
    (batch,) = batches
    loss = model(batch)
    loss.backward()
    if lens is not None:
        lens.grads_ready()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def replayed(folder, data, disturb=lambda step, model, optimizer: None, steps=STEPS):
    model, optimizer = parts()
    with sl.attach(model, optimizer, folder, blackbox=sl.BlackBox(snapshot_every=8)) as lens:
        for step in range(1, steps + 1):
            disturb(step, model, optimizer)
            batch = lens.batch(data(step), ids=[f"doc-{step}-{i}" for i in range(8)])
            lens.step(step_fn(model, optimizer, [batch], lens))
        if not list((folder / "stabilitylens").glob("incidents/step_*")):
            lens.dump()
        assert not lens.guard.failures, lens.guard.failures
    found = sl.replay(folder, *parts(), step_fn)
    assert found.exact, found.difference
    return found


def test_a_bad_row_is_named_with_its_id(tmp_path):
    def data(step):
        batch = counting(step)
        if step == STEPS:
            batch[5] = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(9))
        return batch

    found = replayed(tmp_path, data)
    assert found.step == STEPS
    assert [(r.row, r.id) for r in found.samples.unlike] == [(5, f"doc-{STEPS}-5")]
    assert not found.samples.ordinary
    assert f"row 5 (doc-{STEPS}-5)" in found.samples.sentence and found.samples.sentence in str(found)


def test_a_bad_batch_is_data(tmp_path):
    def data(step):
        if step < STEPS:
            return counting(step)
        return torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(9))

    found = replayed(tmp_path, data)
    assert (found.step, found.cause.verdict) == (STEPS, "data")
    assert len(found.samples.unlike) == 8 and "the whole batch" in found.samples.sentence


def test_high_learning_rates_are_state(tmp_path):
    def disturb(step, model, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 0.3 if 33 <= step < 36 else 3e-3

    found = replayed(tmp_path, counting, disturb)
    assert found.step >= 34
    assert found.cause.verdict == "state"
    assert found.samples.ordinary and "ordinary" in found.samples.sentence


def test_an_ordinary_step_is_said_to_be_ordinary(tmp_path):
    found = replayed(tmp_path, counting)
    assert found.kinds == ("asked",)
    assert found.samples.ordinary and found.cause.verdict == "neither" and found.first_bad is None


def test_the_replay_leaves_the_state_before_the_step(tmp_path):
    states = {}

    def disturb(step, model, optimizer):
        states[step] = {k: v.clone() for k, v in model.state_dict().items()}

    replayed(tmp_path, counting, disturb, steps=12)
    model, optimizer = parts()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(7.0)
    sl.replay(tmp_path, model, optimizer, step_fn)
    for name, value in model.state_dict().items():
        assert torch.equal(value, states[12][name]), name
    assert float(optimizer.state[next(model.parameters())]["step"]) == 11


class Overflowing(Decoder):
    """One matrix gets an infinite gradient at a step, although every activation and its gradient is finite."""

    def __init__(self):
        super().__init__(dropout=0.0)
        self.now = False
        self.blocks[1].up.weight.register_hook(lambda g: g * float("inf") if self.now else None)


def test_a_parameter_s_gradient_that_overflows_is_named(tmp_path):
    torch.manual_seed(0)

    def fresh():
        model = Overflowing().train()
        return model, torch.optim.AdamW(model.parameters(), 3e-3)

    count = {"step": 0}

    def step(model, optimizer, batches, lens=None):
        count["step"] += 1
        model.now = count["step"] == 12
        return step_fn(model, optimizer, batches, lens)

    model, optimizer = fresh()
    with sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(snapshot_every=4)) as lens:
        for i in range(1, 13):
            lens.step(step(model, optimizer, [counting(i)], lens))
    count["step"] = 4
    found = sl.replay(tmp_path, *fresh(), step, samples=False)
    first = found.first_bad
    assert (found.step, found.snapshot_step, found.exact) == (12, 5, True)
    assert (first.what, first.step, first.module, first.direction) == ("nonfinite", 12, "blocks.1.up", "backward")
    assert first.frame.parameter == "blocks.1.up.weight"
    assert first.frame.input.finite


def test_weights_that_were_damaged_the_step_before_are_traced_to_that_step(tmp_path):
    """The gradient of step 11 is not finite, which nobody looks at; the loss is so at step 12."""
    model, optimizer = parts()

    def step(model, optimizer, batches):
        (batch,) = batches
        loss = model(batch)
        (loss / (batch[0, 0] != 63)).backward()  # infinite where a sequence begins with 63
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def data(i):
        batch = counting(i)
        batch[0, 0] = 63 if i == 11 else 1
        return batch

    with sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(snapshot_every=4)) as lens:
        lens.grads_ready = lambda *_: None
        for i in range(1, 13):
            loss = step(model, optimizer, [lens.batch(data(i))])
            lens.step(loss)
        if not (tmp_path / "stabilitylens" / "incidents").exists():
            lens.dump()
    found = sl.replay(tmp_path, *parts(), step, samples=False)
    assert found.first_bad.step == 11
    assert (found.first_bad.what, found.first_bad.direction) == ("nonfinite", "backward")


def test_a_step_that_a_guard_skipped_is_skipped_again(tmp_path):
    """The gradient of step 11 is infinite and its loss is not; the guard skips it, and the training goes on."""
    model, optimizer = parts()

    def step(model, optimizer, batches, lens=None):
        (batch,) = batches
        loss = model(batch)
        (loss / (batch[0, 0] != 63)).backward()
        if lens is not None:
            lens.grads_ready()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def data(i):
        batch = counting(i)
        batch[0, 0] = 63 if i == 11 else 1
        return batch

    with sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(snapshot_every=4)) as lens:
        lens.on("nonfinite", "skip")
        for i in range(1, 15):
            lens.step(step(model, optimizer, [lens.batch(data(i))], lens))
        path = lens.dump()
        assert not lens.guard.failures
    found = sl.replay(path, *parts(), step, samples=False)
    assert found.step == 14 and found.snapshot_step <= 10
    assert found.exact, found.difference
    assert torch.isfinite(torch.tensor(list(found.losses.values()))).all()


def test_sigma_above_is_the_robust_score_of_logarithms():
    past = [1.0, 1.1, 0.9, 1.05, 0.95]
    logs = torch.tensor(past, dtype=torch.float64).log()
    spread = (logs - logs.median()).abs().median() * 1.4826
    assert sigma_above(2.0, past, 0.0) == pytest.approx(float((torch.tensor(2.0, dtype=torch.float64).log() - logs.median()) / spread))
    assert sigma_above(float("nan"), past, 0.1) == float("inf")
    assert sigma_above(-1.0, past, 0.1) == 0.0
    assert sigma_above(2.0, [float("nan")], 0.1) != sigma_above(2.0, [float("nan")], 0.1)


def test_rows_of_a_batch():
    batch = {"x": torch.arange(12).reshape(4, 3), "y": torch.arange(4), "scale": torch.tensor(2.0), "table": torch.zeros(7, 2), "n": 3}
    assert row_count(batch) == 4
    one = row(batch, 2, 4)
    assert one["x"].tolist() == [[6, 7, 8]] and one["y"].tolist() == [2]
    assert one["scale"] is batch["scale"] and one["table"] is batch["table"] and one["n"] == 3
    assert row_count({"n": 3}) == 0
