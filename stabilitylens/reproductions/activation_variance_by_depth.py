"""Kim et al. 2025 on the variance of the stream by depth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from stabilitylens.reproductions._choices import Choices, Placement
from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, at, claim
from stabilitylens.reproductions._initial import initial, slope

ARMS: tuple[Placement, ...] = ("post", "pre", "peri")
#: fresh models whose mean is one measurement
MODELS = 3


def _cells(width: int, depths: tuple[int, ...]) -> dict[str, Choices]:
    base = Choices(width=width, context=32, init="xavier")
    return {f"{arm}@{depth}": replace(base, placement=arm, depth=depth) for arm in ARMS for depth in depths}


def _growth(table: Table) -> Numbers:
    out: Numbers = {}
    for arm in ARMS:
        depths, variances = at(table, arm, "variance")
        out[f"{arm}_slope"] = slope(depths, variances)
        out[f"{arm}_last"] = variances[-1]
        out[f"{arm}_step"] = float(np.polyfit(depths, variances, 1)[0]) / 2
    return out


@claim(
    paper="Kim et al. 2025, Peri-LN: Revisiting Normalization Layer in the Transformer Architecture, https://arxiv.org/abs/2502.02732",
    says=(
        "At initialisation the variance of the residual stream is constant over the layers of Post-LN, and grows linearly with depth "
        "in Pre-LN and Peri-LN, in Peri-LN by the variance of a normalised output a sub-layer."
    ),
    expects=(
        Expect("post_last", "variance after the last layer, Post-LN", 0.95, 1.05),
        Expect("pre_slope", "log-log slope of the variance against depth, from 8 layers, Pre-LN", 0.85, 1.15),
        Expect("peri_slope", "the same, Peri-LN", 0.85, 1.15),
        Expect("peri_step", "variance that a sub-layer adds, Peri-LN", 0.8, 1.2, "supporting"),
    ),
    conclude=_growth,
    quick=Plan(_cells(128, (8, 16, 32, 64)), seeds=3, seconds=22),
    full=Plan(_cells(256, (8, 16, 32, 64, 128)), seeds=5, seconds=200),
    bigger="That Pre-LN's variance grows exponentially during training, which the paper shows at 400M parameters and more.",
    picture=Picture("variance", "variance of the stream", "layers"),
)
def activation_variance_by_depth(cell: Choices, seed: int, folder: Path) -> Numbers:
    """The stream's variance by depth at initialisation: constant in Post-LN, linear in Pre-LN and Peri-LN.

    Fresh models with Xavier initialisation on one batch of text; the variance is that of what leaves the last layer.
    """
    return {"variance": float(np.mean([initial(cell, MODELS * seed + i).variances[-1] for i in range(MODELS)]))}
