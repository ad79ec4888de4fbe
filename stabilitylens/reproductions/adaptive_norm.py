"""A norm whose strength depends on the token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim
from stabilitylens.reproductions._training import Trial, largest, late_loss, train

SHORT = Trial(Choices(depth=4, width=32, context=32), steps=150, lr=1e-2, warmup=15, batch=8, every=15)


def _cells(trial: Trial) -> dict[str, Trial]:
    return {norm: replace(trial, choices=replace(trial.choices, norm=norm)) for norm in ("rms_norm", "adaptive_norm")}


def _differences(table: Table) -> Numbers:
    plain, adaptive = table["rms_norm"], table["adaptive_norm"]
    return {"loss": adaptive["loss"] - plain["loss"], "stream": adaptive["stream"] / plain["stream"]}


@claim(
    paper="No publication: the norm is an experiment of this project; RMSNorm is that of https://arxiv.org/abs/1910.07467",
    says="A norm that learns how strongly to normalise each token trains better than RMSNorm.",
    expects=(
        Expect("loss", "loss at the end, nat, adaptive norm less RMSNorm", high=-0.02),
        Expect("stream", "largest element of the stream, adaptive norm over RMSNorm: it stays bounded", high=3, role="supporting"),
    ),
    conclude=_differences,
    quick=Plan(_cells(SHORT), seeds=3, seconds=18),
    full=Plan(_cells(Trial(Choices(context=64), lr=1e-2, steps=1000)), seeds=3, seconds=400),
    bigger="Whether anything changes beyond a thousand steps.",
)
def adaptive_norm(cell: Trial, seed: int, folder: Path) -> Numbers:
    """A token-dependent norm against RMSNorm.

    An open question rather than a published claim; the same decoder with either norm.
    """
    _, run = train(cell, seed, folder)
    return {"loss": late_loss(run), "stream": largest(run, "resid_absmax")}
