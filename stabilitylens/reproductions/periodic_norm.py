"""A norm on the stream every few sub-layers, in a deep model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from stabilitylens.reproductions._choices import Choices, Placement
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim
from stabilitylens.reproductions._training import Trial, late_loss, train

ARMS: tuple[Placement, ...] = ("pre", "peri", "periodic")
THIN = Trial(Choices(depth=60, width=16, heads=2, context=32, init="xavier"), steps=60, lr=3e-3, warmup=10, batch=8, every=20)


def _cells(trial: Trial) -> dict[str, Trial]:
    return {arm: replace(trial, choices=replace(trial.choices, placement=arm)) for arm in ARMS}


def _differences(table: Table) -> Numbers:
    periodic = table["periodic"]
    return {
        "stream": periodic["stream"] / table["pre"]["stream"],
        "against_pre": periodic["loss"] - table["pre"]["loss"],
        "against_peri": periodic["loss"] - table["peri"]["loss"],
    }


@claim(
    paper="Passed on without a source, sometimes under the name of Peri-LN, which is another thing: https://arxiv.org/abs/2502.02732",
    says="In models of 60 layers and more, Pre-LN with a norm on the stream every few layers bounds the stream and trains better.",
    expects=(
        Expect("stream", "RMS of the stream after the last layer, periodic over Pre-LN", high=0.5),
        Expect("against_pre", "loss at the end, nat, periodic less Pre-LN", high=-0.02),
        Expect("against_peri", "loss at the end, nat, periodic less Peri-LN", high=-0.02, role="supporting"),
    ),
    conclude=_differences,
    quick=Plan(_cells(THIN), seeds=3, seconds=85),
    full=Plan(_cells(replace(THIN, choices=replace(THIN.choices, width=32, heads=4, context=64), steps=200)), seeds=3, seconds=600),
    bigger="Sixty layers of a useful width, and long training.",
)
def periodic_norm(cell: Trial, seed: int, folder: Path) -> Numbers:
    """Periodic norms against Pre-LN and Peri-LN in sixty thin layers.

    An open question: the variant is talked about, and no measurement of it is known. One norm every six sub-layers.
    """
    _, run = train(cell, seed, folder)
    return {"loss": late_loss(run), "stream": float(np.nanmedian(run["resid_rms"].values[:, -1]))}
