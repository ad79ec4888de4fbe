"""A plain PyTorch loop with a lens on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

import stabilitylens as sl
from stabilitylens.demo.model import Decoder, Shape
from stabilitylens.demo.text import batches, standard_library


@dataclass(frozen=True)
class Plan:
    """How a run is trained: a learning rate at which attention logits are known to grow.

    The setting is a small version of Wortsman et al. 2023 (https://arxiv.org/abs/2309.14322), who show that the
    instabilities of large models appear in small ones at large learning rates.
    """

    steps: int = 300
    batch: int = 16
    lr: float = 0.1
    warmup: int = 30
    beta2: float = 0.95
    every: int = 10
    seed: int = 0


def train(shape: Shape, plan: Plan, logdir: Path, progress: Callable[[float], None]) -> None:
    """Train one model and record it.

    Args:
        shape: the model.
        plan: the recipe.
        logdir: where the recording goes.
        progress: called after each step with its loss in nat.
    """
    torch.manual_seed(plan.seed)
    model = Decoder(shape)
    optimizer = torch.optim.AdamW(model.parameters(), plan.lr, betas=(0.9, plan.beta2))
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / plan.warmup))
    recipe = {"lr": plan.lr, "warmup_steps": plan.warmup, "max_grad_norm": 1.0, "precision": "fp32"}
    text = standard_library()

    with sl.attach(model, optimizer, logdir, every=plan.every, total_steps=plan.steps, recipe=recipe) as lens:
        for inputs, targets in batches(text, plan.steps, plan.batch, shape.context, plan.seed):
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            lens.grads_ready()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            warmup.step()
            lens.step(loss)
            progress(loss.item())
