"""What else of a loop people compile: the optimizer's step, or the whole training step with the lens's calls inside."""

from __future__ import annotations

import pytest
import torch
from loops import observed
from torch._dynamo.utils import counters
from training import Decoder, loss_of, tokens

STEPS = 4


def compiled_step(attach):
    model = Decoder(depth=2, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    lens, losses = attach(model, optimizer), []
    take_step = torch.compile(optimizer.step, backend="eager")
    for _ in range(STEPS):
        loss = loss_of(model, tokens())
        loss.backward()
        lens.grads_ready()
        take_step()
        optimizer.zero_grad()
        lens.step(loss)
        losses.append(loss.detach())
    return model, losses


def compiled_loop(attach):
    model = Decoder(depth=2, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    lens = attach(model, optimizer)

    @torch.compile(backend="eager")
    def train_step(x):
        loss = loss_of(model, x)
        loss.backward()
        lens.grads_ready()
        optimizer.step()
        optimizer.zero_grad()
        lens.step(loss)
        return loss.detach()

    return model, [train_step(tokens()) for _ in range(STEPS)]


@pytest.mark.parametrize(("loop", "more"), [(compiled_step, 0), (compiled_loop, 2)])
def test_what_listens_to_a_compiled_step_is_not_compiled_with_it(loop, more, tmp_path):
    graphs: list[int] = []

    def counted(attach):
        torch._dynamo.reset()
        counters.clear()
        out = loop(attach)
        graphs.append(counters["stats"]["unique_graphs"])
        return out

    run = observed(counted, tmp_path)
    bare, _, mine = graphs
    assert mine <= bare + more, "the taps in blocks may part a graph, and nothing else is compiled"
    for name in ("loss", "grad_norm", "lr", "update_ratio/layer", "adam_rms/layer", "resid_rms"):
        assert len(run[name]) == STEPS, name
    assert "skipped" not in run
