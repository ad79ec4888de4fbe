"""Wortsman et al. 2023 on Adam's ε and shrinking gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from stabilitylens.reproductions._alone import adam_alone
from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, at, claim

EPS = 1e-8
#: gradient root mean square over ε
RATIOS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def _quantities(table: Table) -> Numbers:
    updates = dict(zip(*at(table, "adam", "update_rms"), strict=True))
    return {
        "deviation": max(abs(update * (r + 1) / r - 1) for r, update in updates.items()),
        "far_above": updates[1000.0],
        "far_below": updates[0.01],
    }


@claim(
    paper="Wortsman et al. 2023, Small-scale proxies for large-scale Transformer training instabilities, https://arxiv.org/abs/2309.14322",
    says="Adam's updates shrink when the gradient's root mean square comes near ε: a steady one is multiplied by r / (r + 1), r = RMS(g) / ε.",
    expects=(
        Expect("deviation", "largest relative deviation of the update from r / (r + 1)", high=0.01),
        Expect("far_above", "update RMS over the learning rate at r = 1000", 0.99, 1.01, "supporting"),
        Expect("far_below", "the same at r = 0.01", high=0.0101, role="supporting"),
    ),
    conclude=_quantities,
    quick=Plan({f"adam@{r:g}": r for r in RATIOS}, seeds=3, seconds=3),
    full=Plan({f"adam@{r:g}": r for r in (*RATIOS, 1e4, 1e5)}, seeds=3, seconds=15),
    bigger="That gradients do fall to ε with width and depth, which the paper shows at 5B parameters.",
    picture=Picture("update_rms", "update RMS / learning rate", "gradient RMS / ε"),
)
def epsilon_floor(cell: float, seed: int, folder: Path) -> Numbers:
    """Adam's ε takes its share of the update when gradients are as small as ε.

    Steady gradients of known size through PyTorch's AdamW, read by the lens as `update_rms`. Nothing is wrong with ε = 1e-8 as
    such: what counts is its ratio to the gradients.
    """
    torch.manual_seed(seed)  # the weights, from which the update is read as a difference
    run = adam_alone([cell * EPS] * 2, beta2=0.99, eps=EPS, seed=seed, folder=folder)
    return {"update_rms": float(np.nanmean(run["update_rms/group"].values[-1]))}
