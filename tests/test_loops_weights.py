"""Weights that are frozen, adapted, tied, averaged and copied, and the graphs through them."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import numpy as np
import pytest
import torch
from loops import grad_norm, observed, simple
from torch import Tensor
from training import Decoder, gpt2, llama, loss_of, tokens, update

import stabilitylens as sl


def test_frozen_parameters_are_not_observed_and_not_missed(tmp_path):
    def make():
        model = Decoder(dropout=0.0)
        model.embedding.requires_grad_(False)
        model.blocks[0].requires_grad_(False)
        return model

    run = observed(simple(make), tmp_path)
    assert np.isnan(run["grad_norm/layer"].values[:, 0]).all()
    assert np.isfinite(run["grad_norm/layer"].values[:, 1:]).all()
    seen, total = run.header.coverage.parameters
    assert seen == total
    assert np.isfinite(run["resid_rms"].values).all()


def test_low_rank_adapters(tmp_path):
    peft = pytest.importorskip("peft")

    def make():
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
        return peft.get_peft_model(llama(), config)

    run = observed(simple(make), tmp_path)
    assert run.header.labels["layer"] == tuple(f"model.layers.{i}" for i in range(3))
    assert run.header.coverage.parameters == (12, 12)
    assert np.isfinite(run["resid_grad_norm"].values).all()


def test_adapters_that_get_no_gradient_are_named(tmp_path):
    class Cut(Decoder):
        """Frozen but for adapters in the blocks and its head; reentrant checkpointing cuts the adapters off."""

        def __init__(self):
            super().__init__(dropout=0.0, recompute="reentrant")
            self.embedding.requires_grad_(False)

    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        run = observed(simple(Cut, steps=2), tmp_path)
    missing = dict(run.header.coverage.not_observed)
    assert all(f"blocks.{i}.up.weight" in missing for i in range(3))
    assert "head.weight" not in missing


def test_tied_weights_count_once_and_both_names_are_told(tmp_path):
    norms = []

    def loop(attach):
        model = gpt2()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        value = loss_of(model, tokens())
        value.backward()
        lens.grads_ready()
        norms.append(grad_norm(model))
        optimizer.step()
        lens.step(value)
        return model, [value.detach()]

    run = observed(loop, tmp_path)
    assert run["grad_norm"].values == pytest.approx(norms[-1:], rel=1e-5)
    assert run.header.coverage.tied == (("lm_head.weight", "transformer.wte.weight"),)
    assert "lm_head.weight is transformer.wte.weight" in str(run.header.coverage)
    assert "lm_head" not in run.header.labels["group"], "nothing is counted twice"


def test_an_average_of_the_weights_is_not_observed(tmp_path):
    copies = []

    def loop(attach):
        model, losses = Decoder(), []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        average = torch.optim.swa_utils.AveragedModel(model)
        copies.append(average)
        for _ in range(3):
            value = loss_of(model, tokens())
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            loss_of(average, tokens())
            lens.step(value)
            losses.append(value.detach())
        return average, losses

    run = observed(loop, tmp_path)
    alone = observed(simple(Decoder), tmp_path / "alone")
    assert run["resid_rms"].values.shape == (3, 3)
    assert run["resid_rms"].values[0] == pytest.approx(alone["resid_rms"].values[0], rel=1e-6)


def copies(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return {
        "deepcopy": copy.deepcopy(model),
        "save": torch.load(buffer, weights_only=False),
        "pickle": pickle.loads(pickle.dumps(model)),
    }


@pytest.mark.parametrize("how", ["deepcopy", "save", "pickle"])
def test_a_copy_of_an_observed_model_works_and_is_not_observed(how, tmp_path):
    torch.manual_seed(0)
    model, x = Decoder(dropout=0.0), tokens()
    optimizer = torch.optim.AdamW(model.parameters())
    with sl.attach(model, optimizer, tmp_path / "a", every=1) as lens:
        for _ in range(2):
            loss = loss_of(model, x)
            loss.backward()
            copied = copies(model)[how]
            loss_of(copied, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
        assert not lens.guard.failures
        copied = copies(model)[how]
        again = torch.optim.AdamW(copied.parameters())
        copied_optimizer = copy.deepcopy(optimizer)
        assert not copied_optimizer._optimizer_step_pre_hooks
        with sl.attach(copied, again, tmp_path / "b", every=1) as other:  # and it can be observed itself
            loss = loss_of(copied, x)
            loss.backward()
            again.step()
            other.step(loss)
    run, copied_run = sl.load(tmp_path / "a"), sl.load(tmp_path / "b")
    assert run["loss"].steps.tolist() == [1, 2]
    assert run["resid_rms"].values.shape == (2, 3)
    assert copied_run["resid_rms"].values.shape == (1, 3)


@pytest.mark.parametrize("backward", [{}, {"create_graph": True}])
def test_many_steps_leave_no_tensor_behind(backward, tmp_path):
    torch.manual_seed(0)
    model = Decoder(d=8, heads=2, depth=1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    counts = []
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        for step in range(60 if backward else 200):
            with torch.no_grad():
                loss_of(model, tokens(1, 8))
            loss = loss_of(model, tokens(1, 8))
            loss.backward(**backward)
            lens.grads_ready()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            lens.step(loss, tokens=32)
            del loss
            if step % 20 == 19:
                gc.collect()
                counts.append(sum(issubclass(type(o), Tensor) for o in gc.get_objects()))
        assert not lens.guard.failures
    assert counts[-1] <= counts[0]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_graph_through_the_gradients_is_left_alone(tmp_path):
    def loop(attach):
        model, losses = Decoder(by_hand=True), []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        lens = attach(model, optimizer)
        for _ in range(3):
            value = loss_of(model, tokens())
            grads = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
            total = value + 0.1 * sum(g.square().sum() for g in grads)
            update(total, optimizer, lens, ready=False)
            losses.append(total.detach())
        return model, losses

    run = observed(loop, tmp_path)
    assert np.isfinite(run["resid_rms"].values).all()
