"""Tiny runs and models for rules, built in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stabilitylens.anatomy import Anatomy, AttentionCall, SubLayer
from stabilitylens.findings import Severity
from stabilitylens.header import Header
from stabilitylens.recipe import Recipe
from stabilitylens.rules import Evidence
from stabilitylens.run import INITIAL, Event, Run, Series

LAYERS, HEADS, SAMPLES, EVERY = 4, 4, 40, 10
STEPS = np.arange(SAMPLES) * EVERY
T = np.linspace(0.0, 1.0, SAMPLES)
BLOCKS = tuple(f"blocks.{i}" for i in range(LAYERS))
LABELS = {"layer": BLOCKS, "attention": tuple(f"{b}.attn" for b in BLOCKS), "group": ("embedding", "lm_head")}
AXES = {
    "max_attn_logit": ("attention", "head"), "attn_entropy_ratio": ("attention", "head"),
    "query_norm": ("attention", "head"), "key_norm": ("attention", "kv_head"), "value_norm": ("attention", "kv_head"),
    "attn_entropy": ("attention", "head"), "resid_rms": ("layer",), "resid_absmax": ("layer",),
    "resid_grad_norm": ("layer",), "grad_rms": ("layer",), "adam_rms": ("layer",), "log_z": (), "loss": (), "lr": (),
    "grad_norm": (), "masked_rows": ("attention", "head"), "nonfinite_count": ("layer",), "update_rms": ("layer",),
    "loss_scale": (), "embedding_rms": (), "clip_coef": (), "update_ratio": ("layer",),
}
#: a loss scale that is doubled three times and halved twice
SCALE = 1024.0 * 2.0 ** np.array([0, 1, 2, 1, 2, 1])[np.arange(SAMPLES) * 6 // SAMPLES]
RECIPE = Recipe("AdamW", lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, warmup_steps=100, precision="bf16")


BATCH = replace(RECIPE, batch_size=8, grad_accumulation=4, n_devices=16, seq_len=8192)


def anatomy(layers: int = LAYERS, placement: str = "pre", qk_norm: str = "head", **fields) -> Anatomy:
    kind, alpha = fields.get("norm_kind", None if placement == "none" else "layernorm"), fields.pop("alpha", (None, None))
    subs = tuple(
        SubLayer(i, what, f"blocks.{i}.{what}", placement, kind, alpha=a)
        for i in range(layers) for what, a in zip(("attention", "feed_forward"), alpha, strict=True)
    )
    scale = fields.pop("scale", 0.125)
    calls = tuple(
        AttentionCall(i, f"blocks.{i}.attn", HEADS, 64, qk_norm, None, fields.get("soft_cap"), scale)
        for i in range(layers)
    )
    known = dict(
        norm_placement=placement, norm_kind=kind, qk_norm=qk_norm, n_layers=layers, n_attention=layers, n_parameters=10_000_000,
        n_heads=HEADS, d_head=64, attention_scale=0.125, sub_layers=subs, attention_calls=calls,
    )
    return Anatomy(**known | fields)


def noise(seed: int, *shape: int, size: float = 0.05) -> np.ndarray:
    return np.exp(size * np.random.default_rng(seed).normal(size=(SAMPLES, *shape)))


def everywhere(curve: np.ndarray, *shape: int, seed: int = 0) -> np.ndarray:
    """A curve over the steps at every place, with 5 % of noise."""
    return curve.reshape(-1, *(1 for _ in shape)) * noise(seed, *shape)


def heads(curve: np.ndarray, seed: int = 0) -> np.ndarray:
    return everywhere(curve, LAYERS, HEADS, seed=seed)


def layers(curve: np.ndarray, seed: int = 0) -> np.ndarray:
    return everywhere(curve, LAYERS, seed=seed)


def at(values: np.ndarray, index: tuple[int, ...], curve: np.ndarray) -> np.ndarray:
    out = values.copy()
    out[(slice(None), *index)] = curve
    return out


def rise(first: float, last: float) -> np.ndarray:
    """From first to last by a constant factor a step."""
    return first * (last / first) ** T


def flat(level: float) -> np.ndarray:
    return np.full(SAMPLES, level)


def run(recipe: Recipe | None = RECIPE, model: Anatomy | None = None, **values: np.ndarray) -> Evidence:
    """Evidence of a recorded run; a keyword ``grad_rms__group`` is the array over that axis."""
    series = {}
    for key, array in values.items():
        metric, _, axis = key.partition("__")
        axes = (axis,) if axis else AXES[metric]
        name = f"{metric}/{'_'.join(axes)}" if axes else metric
        series[name] = Series(name, np.arange(len(array)) * EVERY, array, axes, {a: LABELS[a] for a in axes if a in LABELS})
    header = Header(labels=LABELS, anatomy=model, recipe=recipe)
    return Evidence("runs/tiny", model, recipe, Run("runs/tiny", series, header))


def initial(model: Anatomy | None = None, recipe: Recipe | None = RECIPE, **values: np.ndarray) -> Evidence:
    """Evidence of one forward and backward before training: the first sample of each series."""
    evidence = run(recipe, model, **{name: array[:1] for name, array in values.items()})
    return replace(evidence, run=replace(evidence.run, format=INITIAL))


def skipping(evidence: Evidence, *steps: int) -> Evidence:
    """The same run, with skipped steps."""
    return replace(evidence, run=replace(evidence.run, events=[Event(step, "step_skipped") for step in steps]))


def static(model: Anatomy, recipe: Recipe | None = RECIPE) -> Evidence:
    return Evidence("model", model, recipe)


def spiked(level: float, at_sample: int, height: float) -> np.ndarray:
    curve = flat(level)
    curve[at_sample] = height
    return curve


@dataclass(frozen=True)
class Case:
    """Evidence, and the most severe finding that one rule makes of it: None where it must be clear."""

    code: str
    severity: Severity | None
    make: Callable[[], Evidence]


def qk_growth(query: float, value: float, **fields) -> Evidence:
    norm = heads(rise(4, query))
    return run(model=anatomy(**fields), query_norm=norm, key_norm=norm, value_norm=heads(rise(4, value)))


def modules() -> np.ndarray:
    """Gradient norms of two modules outside the blocks."""
    return everywhere(flat(1.0), 2, seed=3)


def twice(level: float, height: float) -> np.ndarray:
    return np.where((np.arange(SAMPLES) == 20) | (np.arange(SAMPLES) == 30), height, level)


def by_module(values: np.ndarray, blocks: np.ndarray | None = None) -> Evidence:
    return run(grad_norm__group=values, grad_norm__layer=layers(flat(1.0) if blocks is None else blocks))


def late(evidence: Evidence) -> Evidence:
    """The same run, as if its first sample were at step 100."""
    series = {n: replace(s, steps=s.steps[10:], values=s.values[:-10]) for n, s in evidence.run.series.items()}
    return replace(evidence, run=replace(evidence.run, series=series))
