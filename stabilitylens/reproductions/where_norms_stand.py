"""Which norms published models have, and where they stand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.reproductions._claim import Expect, Numbers, Plan, Table, claim

LAYERS, WIDTH, WORDS = 4, 32, 64
#: names of sizes in configurations of most families; those of older ones below
USUAL: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "num_hidden_layers": LAYERS, "vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
GPT = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0}
OLDER: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "openai-gpt": GPT,
    "bloom": {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": 4, "vocab_size": WORDS},
    "bert": USUAL | {"is_decoder": True},
    "opt": USUAL | {"ffn_dim": WIDTH, "word_embed_proj_dim": WIDTH},
    "gpt_oss": USUAL | {"num_local_experts": 4},
    "llama4_text": USUAL | {"num_local_experts": 2},
}
WITHOUT_QK, WITH_QK, LAYER_NORM = ("llama", "mistral", "qwen2"), ("qwen3", "gemma3_text", "olmo2", "olmo3"), ("cohere", "bloom", "opt", "gpt_neox")
FAMILIES = ("gpt2", "openai-gpt", "bert", "gemma2", "llama4_text", "gpt_oss", *WITHOUT_QK, *WITH_QK, *LAYER_NORM)


def _share(table: Table, number: str, *families: str) -> float:
    return sum(table[family][number] for family in families) / len(families)


def _shares(table: Table) -> Numbers:
    return {
        "gpt2_post": _share(table, "post", "gpt2"),
        "told_layer_norm": _share(table, "layer_norm", *LAYER_NORM),
        "told_qk": _share(table, "qk_norm", *WITHOUT_QK),
        "gpt2_pre": _share(table, "pre", "gpt2"),
        "old_post": _share(table, "post", "openai-gpt", "bert"),
        "peri": _share(table, "peri", "gemma2", "gemma3_text"),
        "output": _share(table, "output", "olmo2", "olmo3"),
        "cap": table["gemma2"]["soft_cap"],
        "without_qk": _share(table, "qk_norm", *WITHOUT_QK),
        "with_qk": _share(table, "qk_norm", *WITH_QK),
        "llama4": table["llama4_text"]["qk_norm"],
        "layer_norm": _share(table, "layer_norm", *LAYER_NORM),
        "gpt_oss": _share(table, "layer_norm", "gpt_oss"),
    }


@claim(
    paper="Retold without a source; architectures as in https://github.com/huggingface/transformers",
    says="GPT-2 is Post-LN, GPT models are the ones with LayerNorm, and Llama-3, Mistral and Qwen2 have QK-Norm.",
    expects=(
        Expect("gpt2_post", "GPT-2 is Post-LN (1 yes, 0 no)", 1, 1),
        Expect("told_layer_norm", "share of other families with LayerNorm: Cohere, BLOOM, OPT, GPT-NeoX", 0, 0),
        Expect("told_qk", "share of attention calls with QK-Norm, Llama-3, Mistral, Qwen2", 1, 1),
        Expect("gpt2_pre", "GPT-2 is Pre-LN", 1, 1, "corrected"),
        Expect("old_post", "share of GPT-1 and BERT that is Post-LN, N(x + F(x))", 1, 1, "corrected"),
        Expect("peri", "share of Gemma 2 and 3 that is Peri-LN, x + N(F(N(x))) in every sub-layer", 1, 1, "corrected"),
        Expect("output", "share of OLMo 2 and 3 with the output norm, x + N(F(x))", 1, 1, "corrected"),
        Expect("cap", "soft-cap of Gemma 2's attention logits", 50, 50, "corrected"),
        Expect("without_qk", "share of attention calls with QK-Norm, Llama-3, Mistral, Qwen2: they have none", 0, 0, "corrected"),
        Expect("with_qk", "share of attention calls with it, Qwen3, Gemma 3, OLMo 2 and 3", 1, 1, "corrected"),
        Expect("llama4", "the same, Llama 4: in layers with rotary positions, three of four", 0.75, 0.75, "corrected"),
        Expect("layer_norm", "share of Cohere, BLOOM, OPT, GPT-NeoX with LayerNorm: all have it", 1, 1, "corrected"),
        Expect("gpt_oss", "gpt-oss has LayerNorm: it has RMSNorm", 0, 0, "corrected"),
    ),
    conclude=_shares,
    quick=Plan({family: family for family in FAMILIES}, seeds=1, seconds=6),
    full=Plan({family: family for family in FAMILIES}, seeds=1, seconds=10),
    bigger="Nothing.",
)
def where_norms_stand(cell: str, seed: int, folder: Path) -> Numbers:
    """GPT-2 is Pre-LN; what published models really have.

    Models of seventeen families with four narrow layers and random weights, as transformers builds them, read by `audit` from
    their dataflow, not from names. Needs transformers.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise BadInput("the published architectures come with transformers, which is missing: pip install transformers") from error
    config = AutoConfig.for_model(cell, **OLDER.get(cell, USUAL))
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    anatomy = sl.audit(model, example_inputs={"input_ids": torch.arange(1, 17)[None]}).anatomy
    assert anatomy is not None
    calls = [call.qk_norm != "none" for call in anatomy.attention_calls]
    placements = {place: float(anatomy.norm_placement == place) for place in ("pre", "post", "peri", "output")}
    return placements | {
        "layer_norm": float(anatomy.norm_kind == "layernorm"),
        "qk_norm": sum(calls) / len(calls) if calls else math.nan,
        "soft_cap": anatomy.soft_cap or 0.0,
    }
