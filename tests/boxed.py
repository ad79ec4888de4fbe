"""Small runs with a black box."""

from __future__ import annotations

import torch
from training import Decoder

import stabilitylens as sl
from stabilitylens.hooks.blackbox.evidence import INCIDENTS


def dumped(folder):
    return sorted(p.name for p in (folder / INCIDENTS).iterdir()) if (folder / INCIDENTS).exists() else []


def trained(folder, batches, box, *, given=True, forward=lambda model, batch: model(batch["x"]), after=lambda step: None, dump=True):
    """A run of as many steps as batches; the lens, closed."""
    torch.manual_seed(0)
    model = Decoder().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    lens = sl.attach(model, optimizer, folder, blackbox=box)
    for step, batch in enumerate(batches, 1):
        if given:
            lens.batch(batch)
        loss = forward(model, batch)
        loss.backward()
        lens.grads_ready()
        optimizer.step()
        optimizer.zero_grad()
        lens.step(loss)
        after(step)
    path = lens.dump() if dump else None
    assert not lens.guard.failures, lens.guard.failures
    lens.close()
    return path
