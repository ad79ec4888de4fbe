"""RMSNorm against LayerNorm: how alike their outputs are."""

from __future__ import annotations

from pathlib import Path

import torch

from stabilitylens.norms import LayerNorm, RMSNorm
from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, claim

WIDTHS = (2, 8, 64, 512, 4096)
#: the figure that is passed on
TOLD = 0.9976


def correlation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Pearson's, over the last axis."""
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    return torch.div((a * b).sum(-1), a.norm(dim=-1) * b.norm(dim=-1))


def _quantities(table: Table) -> Numbers:
    pooled = [numbers["pooled"] for numbers in table.values()]
    return {
        "largest_from_told": max(abs(p - TOLD) for p in pooled),
        "token": max(numbers["token"] for numbers in table.values()),
        "cosine": max(numbers["cosine"] for numbers in table.values()),
        "pooled_smallest": min(pooled),
        "pooled_largest": max(pooled),
    }


@claim(
    paper="Passed on without a source; the identities follow from the definitions, https://arxiv.org/abs/1910.07467",
    says="The outputs of RMSNorm and LayerNorm correlate at .9976.",
    expects=(
        Expect("largest_from_told", "largest distance of the pooled correlation from .9976, widths 2 to 4096", high=5e-4),
        Expect("token", "1 less the correlation within one token, in the worst case", high=1e-9, role="corrected"),
        Expect("cosine", "largest deviation of their cosine from √(1 − μ²/rms²)", high=1e-9, role="corrected"),
        Expect("pooled_largest", "pooled correlation at the width where it is largest", 0.999, 1, "corrected"),
        Expect("pooled_smallest", "pooled correlation at the width where it is smallest", -1, 0.99, "corrected"),
    ),
    conclude=_quantities,
    quick=Plan({f"pooled@{d}": (d, 2048) for d in WIDTHS}, seeds=3, seconds=4),
    full=Plan({f"pooled@{d}": (d, 16384) for d in WIDTHS}, seeds=5, seconds=30),
    bigger="Nothing: it is arithmetic.",
    picture=Picture("pooled", "pooled correlation", "width", log_y=False),
)
def norms_differ_by_a_mean(cell: tuple[int, int], seed: int, folder: Path) -> Numbers:
    """RMSNorm and LayerNorm of one token correlate exactly 1; a figure pooled over tokens says how wide the model is.

    Both are affine in the token, so that within a token the correlation is 1. Random normal tokens, double precision.
    """
    width, tokens = cell
    x = torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a, b = LayerNorm(width, eps=0.0).double()(x).detach(), RMSNorm(width, eps=0.0).double()(x).detach()
    exact = (1 - x.mean(-1).square() / x.square().mean(-1)).sqrt()
    cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
    return {
        "pooled": float(correlation(a.flatten(), b.flatten())),
        "token": float((1 - correlation(a, b)).abs().max()),
        "cosine": float((cosine - exact).abs().max()),
    }
