"""Cohen et al. 2022 on the adaptive edge of stability."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, at, claim

BETA1, BETA2, EPS = 0.9, 0.99, 1e-8
#: Adam with a fixed preconditioner is stable on a quadratic below this over η: (2 + 2β₁) / (1 − β₁)
THRESHOLD = (2 + 2 * BETA1) / (1 - BETA1)
POWER_STEPS, CHECKS = 40, 8


@dataclass(frozen=True)
class Task:
    """Full-batch Adam on a small tanh network."""

    lr: float
    steps: int
    width: int = 32
    samples: int = 64


def _sharpness(loss: Tensor, weights: list[Tensor], scales: list[Tensor], start: list[Tensor]) -> float:
    """Largest eigenvalue of the Hessian preconditioned on both sides by the root of Adam's denominator, by power iteration."""
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    vector, value = start, 0.0
    for _ in range(POWER_STEPS):
        length = torch.sqrt(sum((v.square().sum() for v in vector), torch.zeros(())))
        vector = [v / length for v in vector]
        inner = [v / s.sqrt() for v, s in zip(vector, scales, strict=True)]
        product = torch.autograd.grad(gradients, weights, inner, retain_graph=True)
        new = [p / s.sqrt() for p, s in zip(product, scales, strict=True)]
        value = float(sum((n * v).sum() for n, v in zip(new, vector, strict=True)))
        vector = new
    return value


def _denominators(optimizer: torch.optim.Optimizer, weights: list[Tensor]) -> list[Tensor]:
    states = [optimizer.state[w] for w in weights]
    return [(s["exp_avg_sq"] / (1 - BETA2 ** float(s["step"]))).sqrt() + EPS for s in states]


def _problem(task: Task, seed: int) -> tuple[nn.Module, Float[Tensor, "sample 8"], Float[Tensor, "sample 1"]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, task.width), nn.Tanh(), nn.Linear(task.width, task.width), nn.Tanh(), nn.Linear(task.width, 1))
    return model, torch.randn(task.samples, 8), torch.randn(task.samples, 1)


def _quantities(table: Table) -> Numbers:
    found = at(table, "late", "over_threshold")[1]
    return {"smallest": min(found), "largest": max(found), "start": max(at(table, "late", "start")[1])}


@claim(
    paper="Cohen et al. 2022, Adaptive Gradient Methods at the Edge of Stability, https://arxiv.org/abs/2207.14484",
    says="In full-batch training with Adam the largest eigenvalue of the preconditioned Hessian rises to (2 + 2β₁) / ((1 − β₁) η), 38/η at β₁ = .9, and stays there.",
    expects=(
        Expect("smallest", "preconditioned sharpness late in training over 38/η, smallest over learning rates", 0.85, 1.15),
        Expect("largest", "the same, largest", 0.85, 1.15),
        Expect("start", "the same early in training, largest: it has to rise", high=0.8, role="supporting"),
    ),
    conclude=_quantities,
    quick=Plan({f"late@{lr}": Task(lr, 1500) for lr in (1e-3, 3e-3)}, seeds=3, seconds=12),
    full=Plan({f"late@{lr}": Task(lr, 10_000, width=128, samples=256) for lr in (3e-4, 1e-3, 3e-3)}, seeds=3, seconds=300),
    bigger="Mini-batches and Transformers of 100M parameters, where noise keeps the sharpness below the threshold.",
    picture=Picture("over_threshold", "preconditioned sharpness / (38/η)", "learning rate", log_y=False),
)
def adaptive_edge_of_stability(cell: Task, seed: int, folder: Path) -> Numbers:
    """Full-batch Adam trains at the edge of stability: preconditioned sharpness settles at 38/η.

    A tanh network with two hidden layers fits random targets; power iteration on Hessian-vector products, at eight steps of the last
    fifth.
    """
    model, x, y = _problem(cell, seed)
    weights: list[Tensor] = list(model.parameters())
    optimizer = torch.optim.Adam(weights, cell.lr, betas=(BETA1, BETA2), eps=EPS)
    start = [torch.randn_like(w) for w in weights]
    checks = {10, *np.linspace(0.8 * cell.steps, cell.steps, CHECKS, dtype=int).tolist()}
    found = []
    for step in range(1, cell.steps + 1):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if step in checks:
            scales = _denominators(optimizer, weights)
            found.append(_sharpness(F.mse_loss(model(x), y), weights, scales, start) * cell.lr / THRESHOLD)
    return {"start": found[0], "over_threshold": float(np.median(found[1:]))}
