"""Wortsman et al. 2023 on a second moment that lags behind the gradient."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from stabilitylens.reproductions._alone import adam_alone
from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, at, claim

BETAS = (0.8, 0.95, 0.99, 0.999)
JUMPS = (1.5, 2.0, 2.3, 2.5, 3.0, 5.0, 20.0, 1000.0)
#: from which RMS_t on the authors expect a loss spike soon after
THRESHOLD = 2.3


def closed(jump: float, beta2: float) -> float:
    """RMS_t right after steady gradients have grown by a factor."""
    return jump / math.sqrt(beta2 + (1 - beta2) * jump**2)


def _reached(jumps: list[float], values: list[float]) -> float:
    """The jump at which the threshold is reached, by interpolation; infinite where it never is."""
    return float(np.interp(THRESHOLD, values, jumps)) if values[-1] >= THRESHOLD else math.inf


def _quantities(table: Table) -> Numbers:
    curves = {beta2: at(table, f"β2 = {beta2}", "adam_rms") for beta2 in BETAS}
    deviations = [abs(y / closed(x, beta2) - 1) for beta2, (xs, ys) in curves.items() for x, y in zip(xs, ys, strict=True)]
    out = {f"largest_{beta2}": dict(zip(*curve, strict=True))[1000.0] for beta2, curve in curves.items()}
    jumps = [_reached(*curves[beta2]) for beta2 in BETAS[1:]]
    return out | {"deviation": max(deviations), "least_jump": min(jumps), "most_jump": max(jumps)}


@claim(
    paper=(
        "Wortsman et al. 2023, Stable and low-precision training for large-scale vision-language models, "
        "https://arxiv.org/abs/2304.13013"
    ),
    says="RMS_t, the root mean square of g² / v, measures how far the second moment lags; 2.3 and more foretells a loss spike.",
    expects=(
        Expect("deviation", "largest relative deviation of adam_rms from k / √(β₂ + (1 − β₂) k²) after a jump by k", high=1e-3),
        Expect("least_jump", "smallest jump of the gradient that reaches 2.3, β₂ from 0.95 to 0.999", 2.2, 2.8),
        Expect("most_jump", "largest such jump", 2.2, 2.8),
        Expect("largest_0.8", "RMS_t after a jump by 1000 at β₂ = 0.8: 2.3 is reached", THRESHOLD, role="supporting"),
    ),
    conclude=_quantities,
    quick=Plan({f"β2 = {b}@{k:g}": (b, k) for b in BETAS for k in JUMPS}, seeds=3, seconds=8),
    full=Plan({f"β2 = {b}@{k:g}": (b, k) for b in BETAS for k in (*JUMPS, 2.6, 4.0, 10.0)}, seeds=3, seconds=60),
    bigger="The spikes themselves in CLIP models of 1B parameters; spike-lag has them in a small decoder.",
    picture=Picture("adam_rms", "RMS_t", "gradient grows by", log_y=False),
)
def stale_second_moment(cell: tuple[float, float], seed: int, folder: Path) -> Numbers:
    """RMS_t measures how far Adam's second moment lags behind the gradient.

    Steady gradients that grow by a factor from one step to the next, through PyTorch's AdamW, read by the lens as `adam_rms`.
    RMS_t can't exceed 1/√(1 − β₂), so that a threshold of 2.3 means nothing for β₂ below 0.811.
    """
    beta2, jump = cell
    run = adam_alone([1.0, jump], beta2=beta2, eps=1e-12, seed=seed, folder=folder)
    return {"adam_rms": float(np.nanmean(run["adam_rms/group"].values[-1]))}
