"""Deep Transformers without normalisation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim
from stabilitylens.reproductions._training import Trial, late_loss, train

ARMS = {
    "no norm": Choices(placement="none", init="xavier"),
    "no norm, scaled init": Choices(placement="none", init="scaled"),
    "ReZero": Choices(placement="rezero"),
    "DyT": Choices(norm="dyt"),
    "Derf": Choices(norm="derf"),
    "LayerNorm": Choices(),
    "RMSNorm": Choices(norm="rms_norm"),
}
#: nat of a uniform guess over bytes is 5.55; a model that only learned how often bytes occur has about 3.3
LEARNED, FAILED = 3.2, 4.0


def _cells(trial: Trial) -> dict[str, Trial]:
    small = trial.choices
    return {
        name: replace(trial, choices=replace(arm, depth=small.depth, width=small.width, context=small.context, heads=small.heads))
        for name, arm in ARMS.items()
    }


def _losses(table: Table) -> Numbers:
    return {name: numbers["loss"] for name, numbers in table.items()}


@claim(
    paper=(
        "Zhang et al. 2019, Fixup Initialization, https://arxiv.org/abs/1901.09321; Bachlechner et al. 2020, ReZero is All You Need, "
        "https://arxiv.org/abs/2003.04887; Zhu et al. 2025, Transformers without Normalization, https://arxiv.org/abs/2503.10622"
    ),
    says="Normalisation is not necessary: deep residual networks train without it if the branches start small; without either they do not.",
    expects=(
        Expect("no norm", "loss at the end, nat: Xavier initialisation, no norm", FAILED),
        Expect("no norm, scaled init", "no norm, initial branches times 1/√(2L)", high=LEARNED),
        Expect("ReZero", "no norm, ReZero", high=LEARNED),
        Expect("DyT", "DyT in place of the norms", high=LEARNED, role="supporting"),
        Expect("Derf", "Derf in place of the norms", high=LEARNED, role="supporting"),
        Expect("LayerNorm", "LayerNorm, for comparison", high=LEARNED, role="supporting"),
        Expect("RMSNorm", "RMSNorm, for comparison", high=LEARNED, role="supporting"),
    ),
    conclude=_losses,
    quick=Plan(
        _cells(Trial(Choices(depth=16, width=32, context=32), steps=100, lr=3e-3, warmup=10, batch=8, every=25)), seeds=3, seconds=100
    ),
    full=Plan(_cells(Trial(Choices(depth=16, width=64, context=64), steps=300, lr=3e-3, batch=8)), seeds=3, seconds=700),
    bigger="Whether the losses are equal in the end: full training at 100M parameters and more.",
)
def no_normalisation(cell: Trial, seed: int, folder: Path) -> Numbers:
    """Deep Transformers train without normalisation if their branches start small.

    A byte-level decoder of 16 layers without any norm, as it is, with scaled initial branches and with ReZero; and with element-wise
    stand-ins and norms in place.
    """
    _, run = train(cell, seed, folder)
    return {"loss": late_loss(run), "first_loss": float(run["loss"].values[0])}
