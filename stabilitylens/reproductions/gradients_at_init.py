"""Xiong et al. 2020 on gradients at initialisation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, at, claim
from stabilitylens.reproductions._data import data
from stabilitylens.reproductions._initial import slope
from stabilitylens.reproductions._model import fresh, loss_of

#: fresh models whose geometric mean is one measurement; one alone scatters the slope by about 0.05
MODELS = 8
ARMS = {
    "post": Choices(placement="post", init="xavier"),
    "pre": Choices(placement="pre", init="xavier"),
    "peri": Choices(placement="peri", init="xavier"),
}


def _cells(width: int, depths: tuple[int, ...]) -> dict[str, Choices]:
    small = {arm: replace(choices, width=width, context=32) for arm, choices in ARMS.items()}
    return {f"{arm}@{depth}": replace(choices, depth=depth) for arm, choices in small.items() for depth in depths}


def last_gradient(choices: Choices, seed: int) -> float:
    """Norm of the gradient of one position's loss by the last layer's second feed-forward matrix."""
    model = fresh(choices, seed)
    torch.manual_seed(seed)
    model.head.reset_parameters()  # models of one seed and other depths share the head, so that their comparison is less noisy
    inputs, targets = next(data("text", 1, 1, choices.context, choices.vocabulary, seed))
    loss_of(model(inputs)[:, -1], targets[:, -1]).backward()
    last = next(weight for name, weight in reversed(list(model.named_parameters())) if name.endswith("w2.weight"))
    assert last.grad is not None
    return float(torch.linalg.vector_norm(last.grad))


def _slopes(table: Table) -> Numbers:
    return {f"{arm}_slope": slope(*at(table, arm, "last_gradient")) for arm in ARMS}


@claim(
    paper="Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, https://arxiv.org/abs/2002.04745",
    says=(
        "At initialisation the gradient of the last layer's feed-forward matrix does not depend on the depth L in a Post-LN "
        "Transformer, and falls as 1/√L in a Pre-LN one."
    ),
    expects=(
        Expect("post_slope", "log-log slope of the last layer's gradient against depth, Post-LN", -0.05, 0.05),
        Expect("pre_slope", "the same, Pre-LN", -0.6, -0.4),
        Expect("peri_slope", "the same, Peri-LN, whose stream grows with depth too", -0.6, -0.4, "supporting"),
    ),
    conclude=_slopes,
    quick=Plan(_cells(128, (4, 16, 64)), seeds=3, seconds=27),
    full=Plan(_cells(256, (4, 8, 16, 32, 64, 128)), seeds=5, seconds=400),
    bigger="Nothing: it is a statement on initial weights.",
    picture=Picture("last_gradient", "gradient norm of the last W₂", "layers"),
)
def gradients_at_init(cell: Choices, seed: int, folder: Path) -> Numbers:
    """Gradients at initialisation against depth: constant in Post-LN, 1/√L in Pre-LN.

    Fresh models of rising depth, Xavier initialisation, and the loss of a single position, as in the paper. Of the mean over many
    positions, which was measured first, the slope in Post-LN was 0.01 to 0.07: positions get more alike with depth, and their gradients
    add up. Often retold as *vanishing
    early gradients* of Post-LN; what the paper finds is that Post-LN's gradients near the output are large, and stay so.
    """
    found = [last_gradient(cell, MODELS * seed + i) for i in range(MODELS)]
    return {"last_gradient": float(np.exp(np.log(found).mean()))}
