"""The model and the recipe that choices describe, for our own rules to judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stabilitylens.advice._situation import HEAD, Situation
from stabilitylens.anatomy import Anatomy, AttentionCall, SubLayer
from stabilitylens.recipe import Recipe

#: class names by how a plan calls the optimizer
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}
#: whether a model reads token ids, by task; research may do either
READS_TOKENS = {"lm": True, "vision": False, "detection": False, "speech": False}


def planned_recipe(situation: Situation, sets: Iterable[Mapping[str, Any]]) -> Recipe:
    """What was given, and what the choices set."""
    chosen = {name: value for change in sets for name, value in change.get("recipe", {}).items()}
    given: dict[str, Any] = {
        "optimizer": OPTIMIZERS[situation.optimizer], "lr": situation.lr, "batch_size": situation.batch_size,
        "grad_accumulation": situation.grad_accumulation, "n_devices": situation.n_devices, "seq_len": situation.seq_len,
        "task": situation.task, "multimodal": situation.multimodal,
    }
    return Recipe(**given | chosen)


def planned_anatomy(situation: Situation, sets: Iterable[Mapping[str, Any]]) -> Anatomy:
    """Equal blocks of attention and feed-forward, one branch each, as the choices set them."""
    chosen = {name: value for change in sets for name, value in change.get("anatomy", {}).items()}
    width = situation.head_width or HEAD
    scale = width**-0.5
    known: dict[str, Any] = {
        "n_layers": situation.layers, "n_attention": situation.layers, "n_parameters": round(situation.params),
        "d_model": situation.width, "d_head": width, "attention_scale": scale, "parallel": False, "residual_scale": False,
        "norm_scale": False, "reads_tokens": READS_TOKENS.get(situation.task),
    }
    blocks = range(situation.layers)
    subs = tuple(
        SubLayer(i, kind, f"blocks.{i}.{kind}", chosen["norm_placement"], chosen["norm_kind"])
        for i in blocks for kind in ("attention", "feed_forward")
    )
    calls = tuple(
        AttentionCall(i, f"blocks.{i}.attention", None, width, chosen["qk_norm"], None, None, scale) for i in blocks
    )
    layers = tuple(f"blocks.{i}" for i in blocks)
    return Anatomy(**known | chosen, layers=layers, sub_layers=subs, attention_calls=calls)
