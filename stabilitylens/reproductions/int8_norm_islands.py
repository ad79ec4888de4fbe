"""Norms in FP32 inside a block in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from stabilitylens.norms import island_error
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim
from stabilitylens.reproductions._model import Layer

#: an outlier feature, as large Pre-LN models have them
OUTLIER = 50.0
Precision = Literal["bf16", "int8"]


def errors(precision: Precision, width: int, seed: int) -> Numbers:
    """Relative error of a layer's output in low precision, with norms in FP32 and without."""
    torch.manual_seed(seed)
    layer = Layer(Choices(width=width, heads=4, kind="encoder"), 1)
    x = torch.randn(4, 32, width)
    x[..., 0] *= OUTLIER
    norms = {name: True for name, module in layer.named_modules() if name.endswith(".norm")}
    with_islands, without = (island_error(layer, norms, x, precision, islands) for islands in (True, False))
    return {"with": with_islands, "without": without}


def _ratios(table: Table) -> Numbers:
    return {f"{name}_ratio": numbers["without"] / numbers["with"] for name, numbers in table.items()} | {"int8_error": table["int8"]["with"]}


@claim(
    paper="Dettmers et al. 2022, LLM.int8(), https://arxiv.org/abs/2208.07339, and common practice of quantised inference",
    says="Norms have to stay in FP32 inside a model that is quantised to 8 bits.",
    expects=(
        Expect("int8_ratio", "error of a layer's output with 8-bit norms over that with FP32 norms", 1.5),
        Expect("bf16_ratio", "the same in BF16, norms that round at every operation", 1.0, role="supporting"),
    ),
    conclude=_ratios,
    quick=Plan({"int8": ("int8", 64), "bf16": ("bf16", 64)}, seeds=5, seconds=3),
    full=Plan({"int8": ("int8", 512), "bf16": ("bf16", 512)}, seeds=10, seconds=30),
    bigger="What it does to perplexity in a trained model of 6B parameters and more, where outlier features are.",
)
def int8_norm_islands(cell: tuple[Precision, int], seed: int, folder: Path) -> Numbers:
    """Norms in FP32 inside a layer in 8 bits: how much error they save.

    A Pre-LN layer with random weights on tokens with one outlier feature, weights rounded to 8 bits a row and activations to 8 bits
    a tensor; the norms likewise, or not.
    """
    return errors(*cell, seed)
