"""A loop on Accelerate: losses and gradients are read from its backward, and the weights stay the same."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from loops import grad_norm
from torch.utils.data import DataLoader
from training import Decoder, loss_of, tokens

import stabilitylens as sl
from stabilitylens.hooks.trainers.accelerate import attach


def train(logdir=None, accumulate=2, steps=4):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = Decoder()
    data = torch.cat([tokens() for _ in range(steps * accumulate)])
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), DataLoader(data, 2))
    lens = attach(accelerator, model, optimizer, logdir, every=1) if logdir else None
    losses, norms = [], []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            losses.append(loss.item())
            if accelerator.sync_gradients:
                norms.append(grad_norm(model))
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        if lens and accelerator.sync_gradients:
            lens.step()
    if lens:
        assert not lens.guard.failures
        lens.close()
    assert "backward" not in vars(accelerator)
    return losses, norms, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_record_is_the_steps_own_and_the_weights_are_the_same(accumulate, tmp_path):
    bare, again = train(accumulate=accumulate), train(accumulate=accumulate)
    assert all(map(torch.equal, bare[2], again[2]))
    losses, norms, weights = train(tmp_path, accumulate)
    assert all(map(torch.equal, bare[2], weights))
    run = sl.load(tmp_path)
    means = torch.tensor(losses, dtype=torch.float64).view(-1, accumulate).mean(1)
    assert run["loss"].values == pytest.approx(means.tolist(), rel=1e-6)
    assert run["grad_norm"].values == pytest.approx(norms, rel=1e-5)
    assert run["max_attn_logit"].values.shape == (4, 3, 4)


def test_the_plain_attach_takes_a_prepared_optimizer(tmp_path):
    accelerator = Accelerator(cpu=True)
    model = Decoder()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2))
    with sl.attach(model, optimizer, tmp_path) as lens:
        loss = loss_of(model, tokens())
        accelerator.backward(loss)
        optimizer.step()
        lens.step(loss)
        assert not lens.guard.failures
    assert sl.load(tmp_path)["update_ratio/layer"].values.min() > 0
