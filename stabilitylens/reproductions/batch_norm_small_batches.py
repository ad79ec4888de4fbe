"""Wu and He 2018 on BatchNorm in small batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from stabilitylens.norms import BatchNorm, GroupNorm, LayerNorm
from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, claim
from stabilitylens.reproductions._data import digits

NORMS: dict[str, Callable[[int], nn.Module]] = {"BatchNorm": BatchNorm, "LayerNorm": LayerNorm, "GroupNorm": partial(GroupNorm, groups=8)}
SMALL, LARGE = 2, 64
#: images kept for the test, the last ones
HELD_OUT = 397


@dataclass(frozen=True)
class Training:
    """A perceptron with two hidden layers; the learning rate is ``rate`` times the batch, as the paper scales it."""

    norm: str
    batch: int
    epochs: int
    width: int = 64
    rate: float = 1e-3


def _model(training: Training) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (64, training.width):
        layers += [nn.Linear(inputs, training.width, bias=False), NORMS[training.norm](training.width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(training.width, 10))


def error(training: Training, seed: int) -> float:
    """Share of the held-out digits that are taken for others."""
    torch.manual_seed(seed)
    model = _model(training)
    patches, labels = digits()
    images = patches.flatten(1)[:, None]
    optimizer = torch.optim.SGD(model.parameters(), training.rate * training.batch, momentum=0.9)
    for _ in range(training.epochs):
        order = torch.randperm(len(images) - HELD_OUT)
        for chosen in order.split(training.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]).squeeze(1), labels[chosen]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return float((model(images[-HELD_OUT:]).squeeze(1).argmax(-1) != labels[-HELD_OUT:]).double().mean())


def _rises(table: Table) -> Numbers:
    rise = {name: table[f"{name}@{SMALL}"]["error"] - table[f"{name}@{LARGE}"]["error"] for name in NORMS}
    return rise | {"gap": table[f"BatchNorm@{SMALL}"]["error"] - table[f"GroupNorm@{SMALL}"]["error"]}


def _cells(batches: tuple[int, ...], epochs: int) -> dict[str, Training]:
    return {f"{norm}@{batch}": Training(norm, batch, epochs) for norm in NORMS for batch in batches}


@claim(
    paper="Wu and He 2018, Group Normalization, https://arxiv.org/abs/1803.08494",
    says="BatchNorm's error rises as batches get small; that of GroupNorm and LayerNorm hardly does.",
    expects=(
        Expect("BatchNorm", "test error at batch 2 less that at batch 64, BatchNorm", 0.03),
        Expect("GroupNorm", "the same, GroupNorm", -0.03, 0.03),
        Expect("LayerNorm", "the same, LayerNorm", -0.03, 0.03),
        Expect("gap", "test error at batch 2, BatchNorm less GroupNorm", 0.03, role="supporting"),
    ),
    conclude=_rises,
    quick=Plan(_cells((SMALL, 8, LARGE), 5), seeds=3, seconds=40),
    full=Plan(_cells((SMALL, 4, 8, 16, LARGE), 20), seeds=5, seconds=300),
    bigger="ImageNet and detection, where the paper measures it.",
    picture=Picture("error", "test error", "batch size", log_y=False),
)
def batch_norm_small_batches(cell: Training, seed: int, folder: Path) -> Numbers:
    """BatchNorm gets worse in small batches, GroupNorm and LayerNorm do not.

    Perceptrons on scikit-learn's digits, the same number of images seen at every batch size. Needs scikit-learn.
    """
    return {"error": error(cell, seed)}
