"""A plain training loop with a lens on it, and what claims read from its record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

import stabilitylens as sl
from stabilitylens.hooks.sweep import largest, last_entropy, late_loss
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._data import Task, data
from stabilitylens.reproductions._model import Transformer, fresh, loss_of
from stabilitylens.reproductions._place import device
from stabilitylens.run import Run

__all__ = ["Precision", "Trial", "fires", "largest", "last_entropy", "late_loss", "train"]

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Trial:
    """One training: the model, and how it is trained.

    Attributes:
        warmup: steps over which the learning rate rises from 0; constant afterwards.
        clip: largest gradient norm, None for no clipping.
        precision: what matrix products are computed in.
        every: one step in so many is sampled.
    """

    choices: Choices = field(default_factory=Choices)
    steps: int = 300
    lr: float = 1e-3
    warmup: int = 30
    batch: int = 16
    beta2: float = 0.95
    clip: float | None = 1.0
    z_loss: float = 0.0
    precision: Precision = "fp32"
    task: Task = "text"
    every: int = 10


def train(trial: Trial, seed: int, folder: Path) -> tuple[Transformer, Run]:
    """Train one model under observation.

    Returns:
        The trained model, and the recording in ``folder``.
    """
    choices = trial.choices
    model = fresh(choices, seed)
    optimizer = torch.optim.AdamW(model.groups(trial.lr), trial.lr, betas=(0.9, trial.beta2))
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, trial.warmup)))
    recipe = {"lr": trial.lr, "warmup_steps": trial.warmup, "max_grad_norm": trial.clip, "precision": trial.precision}
    kind = torch.float16 if trial.precision == "fp16" else torch.bfloat16
    given = data(trial.task, trial.steps, trial.batch, choices.context, choices.vocabulary, seed)
    with sl.attach(model, optimizer, folder, every=trial.every, total_steps=trial.steps, recipe=recipe) as lens:
        for inputs, targets in given:
            with torch.autocast(device().type, kind, enabled=trial.precision != "fp32"):
                loss = loss_of(model(inputs), targets, trial.z_loss)
            loss.backward()
            lens.grads_ready()
            if trial.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), trial.clip)
            optimizer.step()
            optimizer.zero_grad()
            warmup.step()
            lens.step(loss)
    return model, sl.load(folder)


def fires(run: Run, code: str) -> float:
    """1 where a rule fired on the run, 0 where it is clear, NaN where it could not be evaluated."""
    verdicts = [finding.verdict for finding in sl.postmortem(run).findings if finding.code == code]
    return math.nan if "not_evaluated" in verdicts else float("fired" in verdicts)
