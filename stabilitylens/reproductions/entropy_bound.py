"""Zhai et al. 2023 on the least attention entropy that bounded logits allow."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim
from stabilitylens.reproductions._data import data
from stabilitylens.reproductions._parts import Attention
from stabilitylens.reproductions._training import Trial, train

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


def trained_gap(trial: Trial, seed: int, folder: Path) -> float:
    """Smallest entropy less the bound for its logits, over all rows of a trained decoder's attention."""
    model, _ = train(trial, seed, folder)
    streams: dict[Attention, Tensor] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(lambda module, args: streams.update({module: args[0]}))
    model(next(data("text", 1, trial.batch, trial.choices.context, trial.choices.vocabulary, seed + 1000))[0])
    return min(_row_gap(module, x) for module, x in streams.items())


@torch.no_grad()
def _row_gap(module: Attention, x: Float[Tensor, "batch position d_model"]) -> float:
    q, k = (projection(x).double().unflatten(-1, (-1, module.d_head)).transpose(1, 2) for projection in (module.q, module.k))
    logits, gaps = q @ k.transpose(-1, -2) * module.scale, []
    for last in range(1, logits.shape[-1]):
        row = logits[..., last, : last + 1].flatten(0, 1)
        sigmas = (row - row.mean(-1, keepdim=True)).norm(dim=-1)
        gaps += [float(h) - bound(float(sigma), last + 1) for h, sigma in zip(entropy(row), sigmas, strict=True)]
    return min(gaps)


def _extremes(table: Table) -> Numbers:
    closed = [numbers for numbers in table.values() if "extremal_gap" in numbers]
    return {
        "attained": max(abs(numbers["extremal_gap"]) for numbers in closed),
        "undercut": min(numbers["smallest_gap"] for numbers in closed),
        "approached": max(numbers["smallest_gap"] for numbers in closed),
        "in_training": table["training"]["smallest_gap"],
    }


TRAINING = Trial(Choices(depth=2, width=32, context=32), steps=60, lr=0.1, warmup=6, batch=8)
CELLS: dict[str, tuple[float, int] | Trial] = {f"σ = {sigma}, {keys} keys": (sigma, keys) for sigma in (0.5, 2.0, 8.0) for keys in (4, 64)} | {"training": TRAINING}


@claim(
    paper="Zhai et al. 2023, Stabilizing Transformer Training by Preventing Attention Entropy Collapse, https://arxiv.org/abs/2303.06296",
    says="The entropy of a row of attention whose logits have norm σ has a lower bound that falls like σ exp(−σ), and it is tight.",
    expects=(
        Expect("attained", "entropy of the extremal logits less the bound, nat, largest in size", -1e-9, 1e-9),
        Expect("undercut", "smallest entropy found by search less the bound, nat", -1e-9),
        Expect("in_training", "the same over all rows of a decoder trained at learning rate 0.1", -1e-9),
        Expect("approached", "smallest entropy found by search less the bound, in the worst of the settings: the search finds it", high=1e-3, role="supporting"),
    ),
    conclude=_extremes,
    quick=Plan(CELLS, seeds=3, seconds=8),
    full=Plan(CELLS, seeds=10, seconds=50),
    bigger="Nothing: it is a theorem.",
)
def entropy_bound(cell: tuple[float, int] | Trial, seed: int, folder: Path) -> Numbers:
    """Bounded attention logits bound the entropy from below, and the bound is attained.

    Closed form against the extremal logits, and against descent on the entropy from random logits, and against the rows of a
    decoder whose attention collapses in training, in double precision.
    """
    if isinstance(cell, Trial):
        return {"smallest_gap": trained_gap(cell, seed, folder)}
    sigma, keys = cell
    least = bound(sigma, keys)
    found = _descended(sigma, keys, 32, seed)
    return {"extremal_gap": float(entropy(extremal(sigma, keys))) - least, "smallest_gap": float(found.min()) - least}
