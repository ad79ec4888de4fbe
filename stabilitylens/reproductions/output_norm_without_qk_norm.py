"""The output norm's early gradients, with and without QK-Norm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim
from stabilitylens.reproductions._initial import initial

BASE = Choices(placement="output", init="xavier", context=32)


def _cells(width: int, depth: int) -> dict[str, Choices]:
    base = replace(BASE, width=width, depth=depth)
    arms = {"output": base, "output, QK-Norm": replace(base, qk_norm=True)}
    return arms | {"pre": replace(base, placement="pre"), "pre, QK-Norm": replace(base, placement="pre", qk_norm=True)}


def _ratios(table: Table) -> Numbers:
    first = {arm: numbers["first_gradient"] for arm, numbers in table.items()}
    return {
        "output_ratio": first["output"] / first["output, QK-Norm"],
        "pre_ratio": first["pre"] / first["pre, QK-Norm"],
    }


@claim(
    paper=(
        "OLMo et al. 2024, 2 OLMo 2 Furious, https://arxiv.org/abs/2501.00656, which has both; that the output norm needs QK-Norm "
        "is an observation of this project, not of the paper"
    ),
    says="With the output norm, x + N(F(x)), what enters attention is not normalised, so that it needs QK-Norm.",
    expects=(
        Expect("output_ratio", "first layer's gradient at initialisation without QK-Norm over that with it, output norm", 10),
        Expect("pre_ratio", "the same, Pre-LN, where it makes no such difference", 0.5, 2, "supporting"),
    ),
    conclude=_ratios,
    quick=Plan(_cells(128, 64), seeds=3, seconds=10),
    full=Plan(_cells(256, 96), seeds=5, seconds=120),
    bigger="Whether it matters beyond initialisation: training 64 layers.",
)
def output_norm_without_qk_norm(cell: Choices, seed: int, folder: Path) -> Numbers:
    """The output norm without QK-Norm: early gradients of deep models are ten times larger at initialisation.

    The stream grows with depth, and with it queries and keys that nothing normalises; attention becomes sharp in late layers,
    and small changes of early layers count for much.
    """
    gradients = initial(cell, seed).gradients
    return {"first_gradient": float(gradients[0]), "median_gradient": float(np.median(gradients))}
