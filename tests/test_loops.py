"""Loops as people write them: what is recorded is the step's own, and the training stays what it is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from loops import grad_norm, in_block, norm, observed
from torch import nn
from training import Decoder, loss_of, tokens, update

import stabilitylens as sl


def test_gradient_accumulation_is_one_value_a_step(tmp_path):
    norms, means = [], []

    def loop(attach):
        model, losses = Decoder(), []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        lens = attach(model, optimizer)
        for _ in range(3):
            micro = []
            for _ in range(4):
                loss = loss_of(model, tokens())
                (loss / 4).backward()
                lens.micro_step(loss)
                micro.append(loss.detach())
            lens.grads_ready()
            norms.append(grad_norm(model))
            means.append(torch.stack(micro).double().mean().item())
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            lens.step()
            losses += micro
        return model, losses

    run = observed(loop, tmp_path)
    assert run["grad_norm"].values == pytest.approx(norms[-3:], rel=1e-5)
    assert run["loss"].values == pytest.approx(means[-3:], rel=1e-6)
    assert run["loss"].steps.tolist() == [1, 2, 3]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale_first", [False, True])
def test_scaled_gradients_are_recorded_unscaled_and_a_skipped_step_is_an_event(fused, unscale_first, tmp_path):
    norms = []

    def loop(attach):
        model, x, losses = Decoder(dropout=0.0), tokens(), []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        lens = attach(model, optimizer, scaler=scaler)
        norms.clear()
        for step in range(1, 7):
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model, x)
            scaler.scale(loss).backward()
            if step == 3:
                model.head.weight.grad[0, 0] = float("inf")
            norms.append(grad_norm(model, scaler.get_scale()))
            if unscale_first:
                scaler.unscale_(optimizer)
            lens.grads_ready()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            lens.step(loss)
            losses.append(loss.detach())
        return model, losses

    run = observed(loop, tmp_path)
    assert run["grad_norm"].values == pytest.approx(norms, rel=1e-4)
    skipped = [e for e in run.events if e.kind == "step_skipped"]
    assert [e.step for e in skipped] == [3]
    assert "loss scale 2048" in skipped[0].text
    assert run["loss_scale"].values.tolist() == [1024, 1024, 2048, 1024, 1024, 2048]
    assert run["adam_rms/layer"].values[0] == pytest.approx(np.ones(3), rel=2e-2)
    report = sl.postmortem(run)
    assert not [i for i in report.incidents if i.kind in ("nonfinite", "spike", "grad_spike")]
    assert not [f for f in report.findings if f.verdict == "fired" and f.severity != "info"]


def test_the_gradients_of_the_stream_are_divided_by_the_scale_they_were_multiplied_by(tmp_path):
    def loop(attach):
        model, x = Decoder(dropout=0.0), tokens()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        lens = attach(model, optimizer, scaler=scaler)
        for _ in range(4):
            loss = loss_of(model, x)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            lens.step(loss)
        return model, [loss.detach()]

    run = observed(loop, tmp_path)
    assert run["loss_scale"].values.tolist() == [4, 8, 16, 32]
    for name in ("resid_grad_norm", "grad_norm_clipped"):
        assert run[name].values == pytest.approx(np.broadcast_to(run[name].values[0], run[name].values.shape), rel=1e-5)


def test_several_optimizers_in_one_step(tmp_path):
    norms = []

    def loop(attach):
        model = Decoder()
        inner = torch.optim.AdamW(model.blocks.parameters(), 1e-3)
        rest = [p for n, p in model.named_parameters() if not n.startswith("blocks.")]
        outer = torch.optim.SGD(rest, 1e-2)
        lens = attach(model, [inner, outer])
        losses = []
        for _ in range(2):
            loss = loss_of(model, tokens())
            loss.backward()
            lens.grads_ready()
            norms.append(grad_norm(model))
            for optimizer in (inner, outer):
                optimizer.step()
                optimizer.zero_grad()
            lens.step(loss)
            losses.append(loss.detach())
        return model, losses

    run = observed(loop, tmp_path)
    assert run["grad_norm"].values == pytest.approx(norms[-2:], rel=1e-5)
    assert run["grad_norm_clipped/layer"].values == pytest.approx(run["grad_norm/layer"].values, rel=1e-6)
    assert np.isfinite(run["update_ratio/group"].values).all()
    assert run["lr"].values == pytest.approx([1e-2, 1e-2])


def test_optimizers_that_take_turns_within_a_step_are_each_read_when_ready(tmp_path):
    norms = []

    def loop(attach):
        model = Decoder(dropout=0.0)
        parts = [in_block(model, 0), in_block(model, 1)]
        optimizers = [torch.optim.SGD(part, 1e-2) for part in parts]
        lens = attach(model, optimizers)
        squares = 0.0
        for optimizer, part in zip(optimizers, parts, strict=True):
            loss = loss_of(model, tokens())
            model.zero_grad()
            loss.backward()
            lens.grads_ready(optimizer)
            squares += norm(p.grad for p in part) ** 2
            optimizer.step()
        norms.append(squares**0.5)
        lens.step(loss)
        return model, [loss.detach()]

    run = observed(loop, tmp_path)
    assert run["grad_norm"].values == pytest.approx(norms[-1:], rel=1e-5)


def test_a_resumed_loop_goes_on_counting_and_the_run_is_one(tmp_path):
    def train(model, optimizer, lens, steps):
        for _ in range(steps):
            update(loss_of(model, tokens()), optimizer, lens)

    def make():
        model = Decoder()
        return model, torch.optim.AdamW(model.parameters(), 1e-3)

    torch.manual_seed(0)
    model, optimizer = make()
    with sl.attach(model, optimizer, tmp_path / "whole", every=2) as lens:
        train(model, optimizer, lens, 9)
    torch.manual_seed(0)
    model, optimizer = make()
    with sl.attach(model, optimizer, tmp_path / "resumed", every=2) as lens:
        train(model, optimizer, lens, 5)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), lens.state_dict(), torch.get_rng_state()))
        train(model, optimizer, lens, 2)  # lost: the process dies after the checkpoint
    model, optimizer = make()
    with sl.attach(model, optimizer, tmp_path / "resumed", every=2) as lens:
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        lens.load_state_dict(saved[2])
        torch.set_rng_state(saved[3])
        train(model, optimizer, lens, 4)
    whole, resumed = (sl.load(tmp_path / name) for name in ("whole", "resumed"))
    assert resumed["loss"].steps.tolist() == list(range(1, 10))
    for name in ("loss", "grad_norm", "max_attn_logit", "update_ratio/layer", "adam_rms/layer"):
        assert resumed[name].steps.tolist() == whole[name].steps.tolist(), name
        assert np.array_equal(resumed[name].values, whole[name].values), name


def test_a_restart_that_dies_before_its_first_step_supersedes_nothing(tmp_path):
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for steps in (3, 0):
        with sl.attach(model, optimizer, tmp_path) as lens:
            for _ in range(steps):
                loss = loss_of(model, tokens())
                loss.backward()
                optimizer.step()
                lens.step(loss)
    assert sl.load(tmp_path)["loss"].steps.tolist() == [1, 2, 3]


@pytest.mark.parametrize("unscaled", [(), (0,), (0, 1)])
def test_one_scaler_for_several_optimizers_some_of_them_unscaled_already(unscaled, tmp_path):
    norms = []

    def loop(attach):
        model = Decoder(dropout=0.0)
        optimizers = [torch.optim.AdamW(in_block(model, i), 1e-3) for i in range(2)]
        model.requires_grad_(False)
        for optimizer in optimizers:
            for p in optimizer.param_groups[0]["params"]:
                p.requires_grad_(True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        lens = attach(model, optimizers, scaler=scaler)
        loss = loss_of(model, tokens())
        scaler.scale(loss).backward()
        norms.append(grad_norm(model, 2.0**10))
        for i in unscaled:
            scaler.unscale_(optimizers[i])
        lens.grads_ready()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        lens.step(loss)
        return model, [loss.detach()]

    run = observed(loop, tmp_path)
    assert run["grad_norm"].values == pytest.approx(norms[-1:], rel=1e-5)
    assert run["grad_norm_clipped"].values == pytest.approx(norms[-1:], rel=1e-5)


def test_evaluation_in_between_changes_nothing(tmp_path):
    def loop_with(evaluate):
        def loop(attach):
            model, losses, x = Decoder(), [], tokens()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            lens = attach(model, optimizer)
            for _ in range(3):
                if evaluate:
                    model.eval()
                    with torch.no_grad():
                        loss_of(model, x)
                    loss_of(model, x)  # people forget no_grad
                    model.train()
                loss = loss_of(model, tokens())
                update(loss, optimizer, lens, ready=False)
                losses.append(loss.detach())
            return model, losses

        return loop

    runs = [observed(loop_with(flag), tmp_path / str(flag)) for flag in (False, True)]
    for name in ("resid_rms", "max_attn_logit", "log_z", "loss"):
        assert np.array_equal(runs[0][name].values, runs[1][name].values), name
