"""Yang et al. 2022 on learning rates that stay the same while the width grows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, at, claim
from stabilitylens.reproductions._training import Trial, late_loss, train

BASE = 32
SHORT = Trial(Choices(depth=2, context=32), steps=100, warmup=10, batch=8, every=50)
LONG = Trial(Choices(depth=2, context=64), steps=200, warmup=20, batch=8, every=50)


def _cells(trial: Trial, widths: tuple[int, ...], lrs: tuple[float, ...]) -> dict[str, Trial]:
    arms = {f"{name}, width {width}": replace(trial.choices, width=width, base_width=base) for name, base in (("usual", None), ("muP", BASE)) for width in widths}
    return {f"{arm}@{lr:g}": replace(trial, choices=choices, lr=lr) for arm, choices in arms.items() for lr in lrs}


def best(lrs: list[float], losses: list[float]) -> float:
    """log2 of the learning rate at the lowest point of the parabola through the lowest loss and its neighbours."""
    capped = [min(loss, math.log(256)) for loss in losses]
    middle = min(max(int(np.argmin(capped)), 1), len(lrs) - 2)
    x, y = np.log2(lrs[middle - 1 : middle + 2]), capped[middle - 1 : middle + 2]
    bend, slope, _ = np.polyfit(x, y, 2)
    return float(np.clip(-slope / (2 * bend), x[0], x[-1])) if bend > 0 else float(x[int(np.argmin(y))])


def _drifts(table: Table) -> Numbers:
    arms = sorted({name.partition("@")[0] for name in table}, key=lambda arm: int(arm.rpartition(" ")[2]))
    found = {arm: best(*at(table, arm, "loss")) for arm in arms}
    usual, mup = ([found[arm] for arm in arms if arm.startswith(name)] for name in ("usual", "muP"))
    return {"usual": usual[-1] - usual[0], "mup": mup[-1] - mup[0], "less": abs(usual[-1] - usual[0]) - abs(mup[-1] - mup[0])}


@claim(
    paper="Yang et al. 2022, Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer, https://arxiv.org/abs/2203.03466",
    says="The best learning rate falls as the width grows in the usual scaling, and stays the same in muP.",
    expects=(
        Expect("usual", "log2 of the best learning rate at width 128 over that at width 32, usual scaling", high=-1),
        Expect("mup", "the same, muP", -0.75, 0.75),
        Expect("less", "how much farther it moves in the usual scaling, factors of two", 0.5, role="supporting"),
    ),
    conclude=_drifts,
    quick=Plan(_cells(SHORT, (32, 128), (2**-9, 2**-7, 2**-5, 2**-3)), seeds=3, seconds=70),
    full=Plan(_cells(LONG, (32, 64, 128), (2**-10, 2**-9, 2**-8, 2**-7, 2**-6, 2**-5, 2**-4, 2**-3)), seeds=3, seconds=600),
    bigger="Widths up to 8,192 and training to the end, as in the paper.",
    picture=Picture("loss", "loss at the end, nat", "learning rate", log_y=False),
)
def learning_rate_transfer(cell: Trial, seed: int, folder: Path) -> Numbers:
    """In muP the best learning rate does not move with the width.

    A byte-level decoder with two layers and four heads at each width. The best learning rate is the lowest point of a parabola
    through the lowest loss of the sweep and its neighbours.
    """
    _, run = train(cell, seed, folder)
    return {"loss": late_loss(run)}
