"""A small Transformer on real text to which something happens at a known step, recorded by the lens."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import stabilitylens as sl
from stabilitylens.demo.model import Decoder, Shape
from stabilitylens.demo.text import batches, standard_library

#: the first batch or step that is not as planned, counted from 0: the lens counts from 1
AT, STEPS, LR = 120, 160, 3e-3
SHAPE = Shape(depth=2, width=32, heads=2, context=32)
RECIPE = {"lr": LR, "warmup_steps": 40, "max_grad_norm": 1.0, "precision": "fp32"}
KINDS = ("healthy", "lr", "labels", "batch")


def _rate(step: int, kind: str) -> float:
    return min(1.0, (step + 1) / 40) * (30.0 if kind == "lr" and step >= AT else 1.0)


def _spoilt(kind: str, step: int, inputs: Tensor, targets: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random labels for thirty steps, or one batch of noise."""
    if kind == "labels" and AT <= step < AT + 30:
        return inputs, torch.randint(0, 256, targets.shape, generator=noise)
    if kind == "batch" and step == AT:
        rows = torch.randint(0, 256, (len(inputs), SHAPE.context + 1), generator=noise)
        return rows[:, :-1], rows[:, 1:]
    return inputs, targets


def record(kind: str, folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    model, noise = Decoder(SHAPE), torch.Generator().manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), LR, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, kind))
    with sl.attach(model, optimizer, folder, every=5, total_steps=STEPS, recipe=RECIPE) as lens:
        for step, batch in enumerate(batches(standard_library(200_000), STEPS, 16, SHAPE.context, seed)):
            inputs, targets = _spoilt(kind, step, *batch, noise)
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            lens.grads_ready()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            lens.step(loss)
    return folder
