"""Zhai et al. 2023 on the least attention entropy that bounded logits allow."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim

#: steps of descent on the entropy; it has converged long before
DESCENT, RATE = 400, 0.05


def bound(sigma: float, keys: int) -> float:
    r"""Least entropy in nat: $\ln(1 + (T-1)\beta) + \sigma\sqrt{T(T-1)}\,\beta / (1 + (T-1)\beta)$, $\beta = e^{-\sigma\sqrt{T/(T-1)}}$."""
    beta = math.exp(-sigma * math.sqrt(keys / (keys - 1)))
    total = 1 + (keys - 1) * beta
    return math.log(total) + sigma * math.sqrt(keys * (keys - 1)) * beta / total


def extremal(sigma: float, keys: int) -> Float[Tensor, " key"]:
    """Logits of norm σ that sum to 0: one high, the others alike."""
    logits = torch.full((keys,), -sigma / math.sqrt(keys * (keys - 1)), dtype=torch.float64)
    logits[0] = sigma * math.sqrt((keys - 1) / keys)
    return logits


def entropy(logits: Float[Tensor, "*row key"]) -> Float[Tensor, "*row"]:
    """Of the softmax, in nat."""
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def _descended(sigma: float, keys: int, rows: int, seed: int) -> Float[Tensor, " row"]:
    """Entropies after gradient descent on them, from random logits, norm at most σ."""
    generator = torch.Generator().manual_seed(seed)
    free = torch.randn(rows, keys, generator=generator, dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.Adam([free], RATE)
    for _ in range(DESCENT):
        optimizer.zero_grad()
        entropy(sigma * free / free.norm(dim=-1, keepdim=True)).sum().backward()
        optimizer.step()
    return entropy(sigma * free / free.norm(dim=-1, keepdim=True)).detach()


def _extremes(table: Table) -> Numbers:
    return {
        "attained": max(abs(numbers["extremal_gap"]) for numbers in table.values()),
        "undercut": min(numbers["smallest_gap"] for numbers in table.values()),
        "approached": max(numbers["smallest_gap"] for numbers in table.values()),
    }


CELLS = {f"σ = {sigma}, {keys} keys": (sigma, keys) for sigma in (0.5, 2.0, 8.0) for keys in (4, 64)}


@claim(
    paper="Zhai et al. 2023, Stabilizing Transformer Training by Preventing Attention Entropy Collapse, https://arxiv.org/abs/2303.06296",
    says="The entropy of a row of attention whose logits have norm σ has a lower bound that falls like σ exp(−σ), and it is tight.",
    expects=(
        Expect("attained", "entropy of the extremal logits less the bound, nat, largest in size", -1e-9, 1e-9),
        Expect("undercut", "smallest entropy found by search less the bound, nat", -1e-9),
        Expect("approached", "the same, in the worst of the settings: the search finds the bound", high=1e-3, role="supporting"),
    ),
    conclude=_extremes,
    quick=Plan(CELLS, seeds=3, seconds=10),
    full=Plan(CELLS, seeds=10, seconds=40),
    bigger="Nothing: it is a theorem.",
)
def entropy_bound(cell: tuple[float, int], seed: int, folder: Path) -> Numbers:
    """Bounded attention logits bound the entropy from below, and the bound is attained.

    Closed form against the extremal logits, and against descent on the entropy from random logits, in double precision.
    """
    sigma, keys = cell
    least = bound(sigma, keys)
    found = _descended(sigma, keys, 32, seed)
    return {"extremal_gap": float(entropy(extremal(sigma, keys))) - least, "smallest_gap": float(found.min()) - least}
