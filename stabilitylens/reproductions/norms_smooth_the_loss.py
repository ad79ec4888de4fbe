"""Santurkar et al. 2018 on why normalisation helps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stabilitylens.norms import BatchNorm, LayerNorm
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim
from stabilitylens.reproductions._data import digits

NORMS = {"no norm": None, "BatchNorm": BatchNorm, "LayerNorm": LayerNorm}
#: how far along the gradient is looked, in learning rates, as in the paper
REACH = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Training:
    """A deep perceptron trained by plain gradient descent on mini-batches."""

    norm: str
    steps: int = 150
    depth: int = 6
    width: int = 64
    batch: int = 128
    lr: float = 0.1
    every: int = 5


def _model(training: Training) -> nn.Module:
    norm, layers = NORMS[training.norm], list[nn.Module]()
    for number in range(training.depth):
        linear = nn.Linear(64 if number == 0 else training.width, training.width)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")  # without it the arm without norms does not train
        layers.append(linear)
        layers += [nn.ReLU()] if norm is None else [norm(training.width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(training.width, 10))


def _gradient(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))


def _length(vectors: list[Tensor]) -> float:
    return float(sum(float(v.square().sum()) for v in vectors) ** 0.5)


def changes(model: nn.Module, x: Tensor, y: Tensor, lr: float) -> tuple[float, float]:
    """Largest change of the gradient along the step, in size and relative to the gradient."""
    weights, here = list(model.parameters()), _gradient(model, x, y)
    found, gone = [], 0.0
    for reach in REACH:
        with torch.no_grad():
            for weight, g in zip(weights, here, strict=True):
                weight.sub_((reach - gone) * lr * g)
        gone = reach
        found.append(_length([b - a for a, b in zip(here, _gradient(model, x, y), strict=True)]))
    with torch.no_grad():
        for weight, g in zip(weights, here, strict=True):
            weight.add_(gone * lr * g)
    return max(found), max(found) / _length(here)


def _ratios(table: Table) -> Numbers:
    bare = table["no norm"]
    out = {f"{name}_{kind}": bare[kind] / table[name][kind] for name in ("BatchNorm", "LayerNorm") for kind in ("change", "relative")}
    return out | {"loss": bare["loss"] - table["BatchNorm"]["loss"]}


@claim(
    paper="Santurkar et al. 2018, How Does Batch Normalization Help Optimization?, https://arxiv.org/abs/1805.11604",
    says="BatchNorm makes the loss surface smoother: the gradient changes less along the step than without it; other norms do the same.",
    expects=(
        Expect("BatchNorm_change", "largest change of the gradient along the step, no norm over BatchNorm", 1.5),
        Expect("LayerNorm_change", "the same, no norm over LayerNorm", 1.5),
        Expect("BatchNorm_relative", "change relative to the gradient's size, no norm over BatchNorm", 1, role="supporting"),
        Expect("loss", "loss at the end, nat, no norm less BatchNorm", 0, role="supporting"),
    ),
    conclude=_ratios,
    quick=Plan({name: Training(name) for name in NORMS}, seeds=3, seconds=10),
    full=Plan({name: Training(name, steps=600, width=256, depth=10) for name in NORMS}, seeds=5, seconds=120),
    bigger="VGG on CIFAR-10, the paper's own setting.",
)
def norms_smooth_the_loss(cell: Training, seed: int, folder: Path) -> Numbers:
    """Norms smooth the loss surface: gradients change less along the step.

    A perceptron with six hidden layers on scikit-learn's digits, looked at along the gradient every few steps; the mean over
    training of the largest change. Needs scikit-learn.

    The set-up was changed after a first result, the expectations were not. With PyTorch's initial weights the perceptron without
    norms does not train: its loss stays at 2.30, that of a guess, and its gradient changes a hundredth as much as BatchNorm's (0.01
    against 1.0 to 1.3), against the claim. Now the weights are those of He et al. 2015, with which all three train. So this compares
    networks that train; it does not say that whatever lacks norms is rough.
    """
    torch.manual_seed(seed)
    model = _model(cell)
    patches, labels = digits()
    images, found, losses = patches.flatten(1), list[tuple[float, float]](), list[float]()
    for step in range(cell.steps):
        chosen = torch.randint(len(images), (cell.batch,))
        x, y = images[chosen], labels[chosen]
        if step % cell.every == 0:
            found.append(changes(model, x, y, cell.lr))
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        losses.append(loss.item())
        with torch.no_grad():
            for weight, g in zip(model.parameters(), gradients, strict=True):
                weight.sub_(cell.lr * g)
    change, relative = np.mean(found, axis=0)
    return {"change": float(change), "relative": float(relative), "loss": float(np.mean(losses[-10:]))}
