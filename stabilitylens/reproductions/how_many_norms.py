"""How many norms published models have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from stabilitylens.errors import BadInput
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim

#: layers of Llama-3-8B, Gemma-2-2B and of the sizes of Qwen3 and OLMo-2 that have 32 of them, from their published configurations
MODELS = {"llama": 32, "qwen3": 32, "olmo2": 32, "gemma2": 26}
TINY: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 32,
    "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


def count(family: str, layers: int) -> int:
    """Norm modules of a model of that family and depth, as transformers builds it; its widths do not matter.

    Raises:
        BadInput: transformers is not installed.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise BadInput("the published architectures come with transformers, which is missing: pip install transformers") from error
    config = AutoConfig.for_model(family, num_hidden_layers=layers, **TINY)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return sum(type(module).__name__.endswith("Norm") for module in model.modules())


def _counts(table: Table) -> Numbers:
    return {family: numbers["norms"] for family, numbers in table.items()}


@claim(
    paper="Counting; architectures as in https://github.com/huggingface/transformers",
    says="Llama-3-8B has 65 normalisation layers.",
    expects=(
        Expect("llama", "norms of Llama-3-8B: two a layer and the last", 65, 65),
        Expect("qwen3", "norms of a Qwen3 with 32 layers: QK-Norm makes it four a layer", 129, 129, "supporting"),
        Expect("olmo2", "norms of an OLMo-2 with 32 layers: the same", 129, 129, "supporting"),
        Expect("gemma2", "norms of Gemma-2-2B, 26 layers: Peri-LN, four a layer", 105, 105, "supporting"),
    ),
    conclude=_counts,
    quick=Plan({family: (family, layers) for family, layers in MODELS.items()}, seeds=1, seconds=6),
    full=Plan({family: (family, layers) for family, layers in MODELS.items()}, seeds=1, seconds=20),
    bigger="Nothing.",
)
def how_many_norms(cell: tuple[str, int], seed: int, folder: Path) -> Numbers:
    """Llama-3-8B has 65 norms; models with QK-Norm or Peri-LN have about twice as many.

    Models of the published depths, counted. Needs transformers.
    """
    return {"norms": float(count(*cell))}
