"""Norms in FP32 inside a block in 8 bits."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.norms import island_error
from stabilitylens.norms.precision_islands import lowered
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim
from stabilitylens.reproductions._model import Layer

#: an outlier feature, as large Pre-LN models have them
OUTLIER = 50.0


class In16(nn.Module):
    """A norm in BF16 that rounds at every operation, inside what computes in another format."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = lowered(nn.Sequential(norm), {"0": True}, "bf16", islands=False)

    def forward(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """Normalise."""
        out: Tensor = self.norm(x.bfloat16()).to(x.dtype)
        return out


@torch.no_grad()
def error_in_16(layer: nn.Module, norms: dict[str, bool], x: Float[Tensor, "*row d"]) -> float:
    """Relative error of an 8-bit layer's output with norms in BF16."""
    other = copy.deepcopy(layer)
    for name in norms:
        owner, _, last = name.rpartition(".")
        setattr(other.get_submodule(owner), last, In16(other.get_submodule(name)))
    exact, low = layer(x).double(), lowered(other, {}, "int8", islands=True)(x).double()
    return float(torch.linalg.vector_norm(low - exact) / torch.linalg.vector_norm(exact))


def _ratios(table: Table) -> Numbers:
    errors = table["layer"]
    return {"bf16_ratio": errors["bf16"] / errors["fp32"], "int8_ratio": errors["int8"] / errors["fp32"]}


@claim(
    paper=(
        "Common practice of quantised inference, passed on without a source; outlier features as in Dettmers et al. 2022, LLM.int8(), "
        "https://arxiv.org/abs/2208.07339"
    ),
    says="Norms have to stay in FP32 inside a model that is quantised to 8 bits.",
    expects=(
        Expect("bf16_ratio", "error of an 8-bit layer's output with BF16 norms over that with FP32 norms: 16 bits are too few", 1.5),
        Expect("bf16_ratio", "the same: 16 bits are enough", 0.9, 1.1, "corrected"),
        Expect("int8_ratio", "the same with 8-bit norms: these are what costs", 1.5, role="corrected"),
    ),
    conclude=_ratios,
    quick=Plan({"layer": 64}, seeds=5, seconds=3),
    full=Plan({"layer": 512}, seeds=10, seconds=30),
    bigger="What it does to perplexity in a trained model of 6B parameters and more, where outlier features are.",
)
def int8_norm_islands(cell: int, seed: int, folder: Path) -> Numbers:
    """Inside a layer in 8 bits, norms in BF16 do as well as in FP32; norms in 8 bits do not.

    A Pre-LN layer with random weights on tokens with one outlier feature, weights rounded to 8 bits a row and activations to 8 bits
    a tensor; the norms in FP32, in BF16 with rounding at every operation, or in 8 bits like the rest.

    At first the claim was judged by norms in 8 bits alone, and came out as reproduced; that they cost error does not say that FP32
    is needed. Now it is judged by norms in BF16, as it is worded.
    """
    torch.manual_seed(seed)
    layer = Layer(Choices(width=cell, heads=4, kind="encoder"), 1)
    x = torch.randn(4, 32, cell)
    x[..., 0] *= OUTLIER
    norms = {name: True for name, module in layer.named_modules() if name.endswith(".norm")}
    fp32, int8 = (island_error(layer, norms, x, "int8", islands) for islands in (True, False))
    return {"fp32": fp32, "bf16": error_in_16(layer, norms, x), "int8": int8}
