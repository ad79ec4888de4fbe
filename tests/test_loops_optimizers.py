"""Optimizers of every build: what they did is what is recorded, and what can't be read is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from loops import grad_norm, in_block, norm, observed
from torch import nn
from training import Decoder, loss_of, tokens

import stabilitylens as sl

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 1e-2),
    "sgd-foreach": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, foreach=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-3),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, 1e-3, amsgrad=True),
    "adam-tensor-lr": lambda p: torch.optim.Adam(p, torch.tensor(1e-3)),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 1e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "adamax": lambda p: torch.optim.Adamax(p, 1e-3),
    "nadam": lambda p: torch.optim.NAdam(p, 1e-3),
    "radam": lambda p: torch.optim.RAdam(p, 1e-3),
    "adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 1e-2, max_iter=3),
}
SECOND_MOMENT = ("adam", "adam-amsgrad", "adam-tensor-lr", "adamw-foreach", "adamw-fused", "nadam", "radam")


@pytest.mark.parametrize("by_closure", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_and_updates_of_every_optimizer(name, by_closure, tmp_path):
    if name == "lbfgs" and not by_closure:
        pytest.skip("computes its gradients by a closure only")
    hand = []

    def loop(attach):
        model, x = Decoder(dropout=0.0), tokens()
        optimizer = OPTIMIZERS[name](list(model.parameters()))
        lens = attach(model, optimizer)
        hand.clear()
        losses = []
        for _ in range(2):
            before = [p.detach().clone() for p in in_block(model, 1)]
            first = []

            def closure(first=first):
                optimizer.zero_grad()
                loss = loss_of(model, x)
                loss.backward()
                first.append((loss.detach(), grad_norm(model)))
                return loss

            if not by_closure:
                closure()
            optimizer.step(*[closure] if by_closure else [])
            lens.step(first[0][0])
            delta = [a - b for a, b in zip(in_block(model, 1), before, strict=True)]
            hand.append((first[0][1], norm(delta) / norm(before)))
            losses.append(first[0][0])
        return model, losses

    run = observed(loop, tmp_path)
    norms, ratios = zip(*hand, strict=True)
    assert run["grad_norm_clipped"].values == pytest.approx(norms, rel=1e-5)
    assert run["update_ratio/layer"].values[:, 1] == pytest.approx(ratios, rel=1e-5)
    assert ("adam_rms/layer" in run) == (name in SECOND_MOMENT)
    if name in SECOND_MOMENT:
        assert run["adam_rms/layer"].values[0] == pytest.approx(np.ones(3), rel=2e-2)
    else:
        assert "adam_rms" in dict(run.header.coverage.not_observed)


class EightBit(torch.optim.AdamW):
    """Keeps its second moment as bytes."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for state in self.state.values():
            state["kept"] = state["exp_avg_sq"]
            state["exp_avg_sq"] = (state["exp_avg_sq"] / state["exp_avg_sq"].max() * 255).to(torch.uint8)


def test_a_state_that_is_no_float_tensor_is_skipped_by_name(tmp_path):
    torch.manual_seed(0)
    model = Decoder()
    optimizer = EightBit(model.parameters(), 1e-3)
    torch.optim.AdamW(model.parameters())  # from now on the step that EightBit calls runs hooks as well
    before = [p.detach().clone() for p in in_block(model, 0)]
    with sl.attach(model, optimizer, tmp_path) as lens:
        loss = loss_of(model, tokens())
        loss.backward()
        optimizer.step()
        lens.step(loss)
        assert not lens.guard.failures
    run = sl.load(tmp_path)
    reasons = dict(run.header.coverage.not_observed)
    assert "float" in reasons["head.weight"]
    assert "adam_rms/layer" not in run
    expected = norm(p - q for p, q in zip(in_block(model, 0), before, strict=True)) / norm(before)
    assert run["update_ratio/layer"].values[0, 0] == pytest.approx(expected, rel=1e-5)


def test_sparse_gradients_are_counted_whole(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(64, 32, sparse=True)
            self.blocks = Decoder().blocks

        def forward(self, x):
            h = self.embedding(x)
            for block in self.blocks:
                h = block(h)
            return h.square().mean()

    torch.manual_seed(0)
    model, x = Model(), tokens()
    optimizers = [torch.optim.SparseAdam(model.embedding.parameters()), torch.optim.AdamW(model.blocks.parameters())]
    with sl.attach(model, optimizers, tmp_path) as lens:
        loss = model(x)
        loss.backward()
        lens.grads_ready()
        dense = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in model.parameters()]
        for optimizer in optimizers:
            optimizer.step()
        lens.step(loss)
        assert not lens.guard.failures
    run = sl.load(tmp_path)
    assert run["grad_norm"].values == pytest.approx([norm(dense)], rel=1e-5)
    assert run["grad_norm/group"].values[0] == pytest.approx([norm(dense[:1])], rel=1e-5)


def test_an_optimizer_that_owns_other_parameters(tmp_path):
    model, other = Decoder(), nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(other.parameters())
    with pytest.warns(sl.hooks.LensWarning, match="owns none of the model's trainable parameters"):
        lens = sl.attach(model, optimizer, tmp_path)
    with lens:
        loss = loss_of(model, tokens()) + other(torch.ones(3)).sum()
        loss.backward()
        optimizer.step()
        lens.step(loss)
        assert not lens.guard.failures
    run = sl.load(tmp_path)
    assert "update_ratio" in dict(run.header.coverage.not_observed)
    assert run["resid_rms"].values.shape == (1, 3)


def test_one_optimizer_for_the_model_and_something_else(tmp_path):
    torch.manual_seed(0)
    model, other = Decoder(), nn.Linear(3, 3)
    optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()])
    with sl.attach(model, optimizer, tmp_path) as lens:
        loss = loss_of(model, tokens()) + other(torch.ones(3)).sum()
        loss.backward()
        optimizer.step()
        lens.step(loss)
        assert not lens.guard.failures
    assert sl.load(tmp_path)["grad_norm_clipped"].values == pytest.approx([grad_norm(model)], rel=1e-5)


def test_what_becomes_trainable_later_is_observed_from_then_on(tmp_path):
    torch.manual_seed(0)
    model = Decoder()
    model.blocks.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        for step in range(3):
            if step == 1:
                model.blocks.requires_grad_(True)
            loss = loss_of(model, tokens())
            loss.backward()
            total = grad_norm(model)
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
        assert not lens.guard.failures
    run = sl.load(tmp_path)
    assert run["grad_norm_clipped"].values[-1] == pytest.approx(total, rel=1e-5)
    assert np.isnan(run["grad_norm_clipped/layer"].values[0]).all()
    assert run["grad_norm_clipped/layer"].values[-1].min() > 0
    assert run.header.coverage.parameters == (len(list(model.parameters())),) * 2


def test_parameter_groups_with_learning_rates_of_their_own(tmp_path):
    expected = []

    def loop(attach):
        model = Decoder()
        groups = [{"params": in_block(model, i), "lr": 10.0 ** -(i + 1)} for i in range(3)]
        groups.append({"params": [*model.embedding.parameters(), *model.norm.parameters(), *model.head.parameters()]})
        optimizer = torch.optim.AdamW(groups, 1e-5)
        lens = attach(model, optimizer)
        before = [[p.detach().clone() for p in in_block(model, i)] for i in range(3)]
        loss = loss_of(model, tokens())
        loss.backward()
        optimizer.step()
        lens.step(loss)
        for i in range(3):
            delta = [a - b for a, b in zip(in_block(model, i), before[i], strict=True)]
            expected.append(norm(delta) / sum(d.numel() for d in delta) ** 0.5 * 10 ** (i + 1))
        return model, [loss.detach()]

    run = observed(loop, tmp_path)
    assert run["update_rms/layer"].values[0] == pytest.approx(expected[-3:], rel=1e-4)
    assert run["lr"].values == pytest.approx([0.1])


@pytest.mark.parametrize("steps_before", [True, False])
def test_the_learning_rate_is_the_one_that_the_step_used(steps_before, tmp_path):
    used = []

    def loop(attach):
        model = Decoder()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
        lens = attach(model, optimizer)
        used.clear()
        for _ in range(4):
            loss = loss_of(model, tokens())
            loss.backward()
            used.append(scheduler.get_last_lr()[0])
            optimizer.step()
            if steps_before:
                scheduler.step()
            lens.step(loss)
            if not steps_before:
                scheduler.step()
        return model, [loss.detach()]

    run = observed(loop, tmp_path)
    assert run["lr"].values == pytest.approx(used)
    assert run["update_rms/layer"].values[0] == pytest.approx(np.ones(3), rel=0.1)  # Adam's first step has RMS 1
