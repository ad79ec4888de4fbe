"""Gupta et al. 2024 on the component that LayerNorm takes away."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch

from stabilitylens.norms import LayerNorm, RMSNorm
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim
from stabilitylens.reproductions._data import data
from stabilitylens.reproductions._training import Trial, train

SHORT = Trial(Choices(norm="rms_norm", width=32, depth=2, context=32), steps=100, lr=1e-2, batch=8, warmup=10, every=50)


def alignment(trial: Trial, seed: int, folder: Path) -> float:
    """Mean |cos| of the trained stream's tokens with the vector of ones, over what random directions have, √(2 / πd)."""
    model, _ = train(trial, seed, folder)
    streams: list[torch.Tensor] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda _, __, out: streams.append(out.detach()))
    choices = trial.choices
    inputs, _ = next(data(trial.task, 1, 16, choices.context, choices.vocabulary, seed + 1000))
    model(inputs)
    cosines = torch.cat([(x.sum(-1) / (x.norm(dim=-1) * math.sqrt(x.shape[-1]))).abs().flatten() for x in streams])
    return float(cosines.mean()) / math.sqrt(2 / (math.pi * choices.width))


@torch.no_grad()
def projection_error(seed: int, width: int = 64) -> float:
    """Largest difference of LayerNorm from RMSNorm of the token without its mean, whatever the mean was."""
    x = torch.randn(256, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    layer, rms = LayerNorm(width).double(), RMSNorm(width, eps=1e-5).double()
    return max(float((layer(x + c) - rms(x - x.mean(-1, keepdim=True))).abs().max()) for c in (0.0, 1.0, 100.0))


def _quantities(table: Table) -> Numbers:
    return table["RMSNorm, trained"] | {"at_start": table["RMSNorm, at the start"]["alignment"]}


@claim(
    paper="Gupta et al. 2024, Geometric Interpretation of Layer Normalization, https://arxiv.org/abs/2409.12951",
    says=(
        "LayerNorm takes away a token's component along the vector of ones and then normalises; models without that step learn "
        "streams that are orthogonal to it anyway, so that the step is redundant."
    ),
    expects=(
        Expect("projection", "largest difference between LayerNorm and RMSNorm after the projection, means up to 100", high=1e-9),
        Expect("alignment", "|cos| of a trained RMSNorm model's stream with the ones, over that of random directions", high=1.5),
    ),
    conclude=_quantities,
    quick=Plan({"RMSNorm, at the start": replace(SHORT, steps=1), "RMSNorm, trained": SHORT}, seeds=3, seconds=5),
    full=Plan({"RMSNorm, at the start": Trial(SHORT.choices, steps=1), "RMSNorm, trained": Trial(Choices(norm="rms_norm"), steps=1000, lr=1e-3)}, seeds=3, seconds=270),
    bigger="The paper's own models, of 1B to 8B parameters.",
)
def layer_norm_removes_the_mean(cell: Trial, seed: int, folder: Path) -> Numbers:
    """LayerNorm projects the mean out, and trained streams hardly have any.

    The identity in double precision; the alignment in a small decoder with RMSNorm, before and after training.
    """
    return {"projection": projection_error(seed), "alignment": alignment(cell, seed, folder)}
