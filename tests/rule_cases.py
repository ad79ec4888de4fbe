"""Tiny runs for rules: of each rule a pair, one that fires and one that stays silent, and what must alarm nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stabilitylens.anatomy import Anatomy, AttentionCall, SubLayer
from stabilitylens.findings import Severity
from stabilitylens.header import Header
from stabilitylens.recipe import Recipe
from stabilitylens.rules import Evidence
from stabilitylens.run import Run, Series

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
    "grad_norm": (),
}
RECIPE = Recipe("AdamW", lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, warmup_steps=100, precision="bf16")


def anatomy(layers: int = LAYERS, placement: str = "pre", qk_norm: str = "head", **fields) -> Anatomy:
    kinds = ("attention", "feed_forward")
    subs = tuple(SubLayer(i, k, f"blocks.{i}.{k}", placement, "layernorm") for i in range(layers) for k in kinds)
    calls = tuple(
        AttentionCall(i, f"blocks.{i}.attn", HEADS, 64, qk_norm, None, fields.get("soft_cap"), 0.125)
        for i in range(layers)
    )
    known = dict(
        norm_placement=placement, qk_norm=qk_norm, n_layers=layers, n_attention=layers, n_parameters=10_000_000,
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


def _qk(query: float, value: float, **fields) -> Evidence:
    norm = heads(rise(4, query))
    return run(model=anatomy(**fields), query_norm=norm, key_norm=norm, value_norm=heads(rise(4, value)))


PAIRS = {
    "no norm on q and k, LR 0.1": Case("SL101", "warning", lambda: static(anatomy(qk_norm="none"), replace(RECIPE, lr=0.1))),
    "norm on q and k": Case("SL101", None, lambda: static(anatomy(), replace(RECIPE, lr=0.1))),
    "18 Post-LN blocks": Case("SL102", "warning", lambda: static(anatomy(18, "post"), replace(RECIPE, warmup_steps=30))),
    "12 Post-LN blocks": Case("SL102", None, lambda: static(anatomy(12, "post"))),
    "logits grow to 20,000": Case("SL201", "error", lambda: run(max_attn_logit=heads(rise(3, 20_000)))),
    "logits stay under 20": Case("SL201", None, lambda: run(max_attn_logit=heads(rise(5, 17)))),
    "all heads collapse": Case("SL202", "error", lambda: run(attn_entropy_ratio=heads(rise(0.9, 0.005)))),
    "entropy stays": Case("SL202", None, lambda: run(attn_entropy_ratio=heads(rise(0.95, 0.6)))),
    "q and k grow, v does not": Case("SL203", "warning", lambda: _qk(60, 5)),
    "q, k and v grow alike": Case("SL203", None, lambda: _qk(60, 60)),
    "gradient gone at the first block": Case(
        "SL301", "error", lambda: run(resid_grad_norm=layers(flat(1.0)) * np.array([1e-6, 1e-3, 1e-1, 1.0]))
    ),
    "gradient falls threefold a block": Case(
        "SL301", None, lambda: run(resid_grad_norm=layers(flat(1.0)) * np.array([0.04, 0.1, 0.3, 1.0]))
    ),
    "gradient under ε": Case("SL302", "error", lambda: run(grad_rms=at(layers(flat(1e-5)), (0,), rise(1e-6, 1e-9)))),
    "gradient at a thousand ε": Case("SL302", None, lambda: run(grad_rms=layers(rise(1e-4, 1e-5)))),
    "update jumps to 3": Case("SL303", "warning", lambda: run(adam_rms=at(layers(flat(0.9)), (1,), spiked(0.9, 20, 3.0)))),
    "update near 1": Case("SL303", None, lambda: run(adam_rms=layers(flat(1.1)))),
    "log Z falls to -80": Case("SL401", "warning", lambda: run(log_z=np.linspace(10.8, -80, SAMPLES))),
    "log Z settles": Case("SL401", None, lambda: run(log_z=4 + 6.8 * np.exp(-8 * T) + np.log(noise(0)))),
    "the stream grows a thousandfold": Case("SL501", "warning", lambda: run(resid_rms=layers(rise(1, 5000)))),
    "the stream doubles": Case("SL501", None, lambda: run(resid_rms=layers(rise(1, 2)) * np.array([1, 2, 3, 4]))),
}

BAND = {
    "nothing risky": Case("SL101", "info", lambda: static(anatomy(qk_norm="none"))),
    "a soft-cap instead": Case("SL101", None, lambda: static(anatomy(qk_norm="none", soft_cap=50.0), replace(RECIPE, lr=0.1))),
    "8 billion": Case("SL101", "warning", lambda: static(anatomy(qk_norm="none", n_parameters=8_000_000_000))),
    "Muon": Case("SL101", "warning", lambda: static(anatomy(qk_norm="none"), Recipe("Muon", lr=0.002))),
    "SGD at 0.1": Case("SL101", "info", lambda: static(anatomy(qk_norm="none"), Recipe("SGD", lr=0.1))),
    "8 billion, logits measured calm": Case("SL101", "info", lambda: run(
        model=anatomy(qk_norm="none", n_parameters=8_000_000_000), max_attn_logit=heads(rise(5, 17)))),
    "logits measured past 1,000": Case("SL101", "error", lambda: run(
        model=anatomy(qk_norm="none"), max_attn_logit=heads(rise(3, 5000)))),
    "Post-LN with a warm-up": Case("SL102", "info", lambda: static(anatomy(18, "post"))),
    "18 Pre-LN blocks": Case("SL102", None, lambda: static(anatomy(18))),
    "18 Peri-LN blocks": Case("SL102", None, lambda: static(anatomy(18, "peri"))),
    "past 100 and rising": Case("SL201", "warning", lambda: run(max_attn_logit=heads(rise(3, 400)))),
    "past 1,000 and rising": Case("SL201", "error", lambda: run(max_attn_logit=heads(rise(3, 3000)))),
    "grew past 1,000, then level": Case("SL201", "warning", lambda: run(
        max_attn_logit=heads(np.minimum(rise(3, 1e7), 2000)))),
    "past 100 in the last samples": Case("SL201", "warning", lambda: run(
        max_attn_logit=heads(np.where(np.arange(SAMPLES) < 36, 20.0, 400.0)))),
    "overflowed": Case("SL201", "error", lambda: run(
        max_attn_logit=np.where(heads(rise(3, 1e5)) > 1e4, np.inf, heads(rise(3, 1e5))))),
    "then nothing but NaN": Case("SL201", "error", lambda: run(
        max_attn_logit=np.where(np.arange(SAMPLES)[:, None, None] < 30, heads(rise(3, 1e6)), np.nan))),
    "to a ratio of .06": Case("SL202", "warning", lambda: run(attn_entropy_ratio=heads(rise(0.9, 0.06)))),
    "sharp from the start": Case("SL202", "warning", lambda: run(attn_entropy_ratio=heads(flat(0.02)))),
    "one sharp head": Case("SL202", "info", lambda: run(attn_entropy_ratio=at(heads(flat(0.8)), (2, 1), rise(0.8, 0.01)))),
    "one sharp head with large logits": Case("SL202", "error", lambda: run(
        attn_entropy_ratio=at(heads(flat(0.8)), (2, 1), rise(0.8, 0.01)),
        max_attn_logit=at(heads(flat(9.0)), (2, 1), rise(9.0, 900.0)))),
    "an outlier layer that grew": Case("SL203", "warning", lambda: run(
        query_norm=at(heads(flat(18.0)), (1,), np.tile(rise(18, 590)[:, None], HEADS)), key_norm=heads(flat(18.0)),
        value_norm=heads(flat(5.0)))),
    "an outlier layer by design": Case("SL203", "info", lambda: run(
        query_norm=heads(flat(18.0)), key_norm=at(heads(flat(18.0)), (0,), np.tile(flat(300.0)[:, None], HEADS)),
        value_norm=heads(flat(5.0)))),
    "growth without large logits": Case("SL203", None, lambda: _qk(20, 5)),
    "growth at an unknown scale": Case("SL203", "warning", lambda: _qk(
        20, 5, attention_scale=None, d_head=None, attention_calls=())),
    "gradient low": Case("SL301", "warning", lambda: run(
        resid_grad_norm=layers(flat(1.0)) * np.array([1e-3, 0.1, 0.5, 1.0]))),
    "frozen first blocks": Case("SL301", None, lambda: run(
        resid_grad_norm=layers(flat(1.0)) * np.array([np.nan, np.nan, 0.8, 1.0]))),
    "all loss scales": Case("SL301", None, lambda: run(resid_grad_norm=layers(rise(1e-8, 1e8)))),
    "gradient near ε": Case("SL302", "warning", lambda: run(grad_rms=layers(flat(5e-8)))),
    "a module outside the blocks": Case("SL302", "error", lambda: run(
        grad_rms=layers(flat(1e-4)), grad_rms__group=everywhere(flat(1.0), 2) * np.array([1e-9, 1e-4]))),
    "no gradient at all": Case("SL302", None, lambda: run(grad_rms=layers(flat(0.0)))),
    "in fp16, near the top": Case("SL501", "warning", lambda: run(
        replace(RECIPE, precision="fp16"), resid_rms=layers(flat(5.0)), resid_absmax=layers(flat(10_000.0)))),
    "in fp16, at the top": Case("SL501", "error", lambda: run(
        replace(RECIPE, precision="fp16"), resid_rms=layers(flat(5.0)), resid_absmax=layers(flat(40_000.0)))),
    "as large in bf16": Case("SL501", None, lambda: run(resid_rms=layers(flat(5.0)), resid_absmax=layers(flat(40_000.0)))),
    "every block times four": Case("SL501", "warning", lambda: run(
        resid_rms=layers(flat(1.0)) * np.array([1.0, 4.0, 16.0, 64.0]))),
    "every block a quarter": Case("SL501", "warning", lambda: run(
        resid_rms=layers(flat(1.0)) / np.array([1.0, 4.0, 16.0, 64.0]))),
    "log Z moves by 30": Case("SL401", "info", lambda: run(log_z=np.linspace(10, -20, SAMPLES))),
}


def _decayed() -> np.ndarray:
    """Past 100 at a third of the run, 150 at its peak, and down again: as large models with Muon have shown."""
    return np.interp(T, [0, 0.35, 0.5, 1.0], [10, 120, 150, 104])


def healthy(seed: int = 0, **values: np.ndarray) -> Evidence:
    """Magnitudes of a GPT-2 that trains well, warm-up included; keywords replace what a control is about."""
    learned = 1 - np.exp(-4 * T)
    depth = np.sqrt(1 + np.arange(LAYERS))
    usual = dict(
        loss=3.2 + 7.6 * np.exp(-6 * T) * noise(seed), grad_norm=0.5 + 2 * np.exp(-5 * T), lr=6e-4 * np.minimum(1, 5 * T),
        max_attn_logit=heads(3 + 15 * learned, seed), attn_entropy_ratio=heads(0.97 - 0.45 * learned, seed),
        query_norm=heads(5 + 8 * learned, seed), key_norm=heads(5 + 8 * learned, seed + 1),
        value_norm=heads(3 + 2 * learned, seed), resid_rms=layers(1 + 6 * learned, seed) * depth,
        resid_absmax=layers(30 + 600 * learned, seed), resid_grad_norm=layers(1e-3 * (1 + 2 * np.exp(-5 * T)), seed) / depth,
        grad_rms=layers(2e-5 * (1 + 2 * np.exp(-5 * T)), seed), adam_rms=layers(0.6 + 0.4 * np.exp(-5 * T), seed),
        log_z=10.8 - 5 * learned + np.log(noise(seed)),
    )
    return run(RECIPE, anatomy(qk_norm="none"), **usual | values)


LENGTH = np.round(np.interp(T, [0, 0.3, 0.6, 1.0], [128, 512, 1024, 2048]))

#: runs in which no rule may find more than information
CONTROLS: dict[str, Callable[[], Evidence]] = {
    "a healthy GPT-2": healthy,
    "another seed": lambda: healthy(7),
    "length curriculum 128 to 2048": lambda: healthy(
        attn_entropy=heads(0.8 * np.log(LENGTH)), attn_entropy_ratio=heads(flat(0.8)),
        max_attn_logit=heads(10 * np.sqrt(np.log(LENGTH)))),
    "warm-up ramp over the whole run": lambda: healthy(lr=np.linspace(0, 6e-4, SAMPLES)),
    "logits pass 100 and decay": lambda: healthy(max_attn_logit=heads(_decayed())),
    "logits level at 100, as clipped": lambda: healthy(max_attn_logit=heads(np.minimum(rise(5, 1e5), 100.0))),
    "gradient norm halves": lambda: healthy(
        grad_norm=np.where(T < 0.5, 1.0, 0.5), resid_grad_norm=layers(np.where(T < 0.5, 1.0, 0.5)),
        grad_rms=layers(np.where(T < 0.5, 2e-5, 1e-5))),
    "two data sets of different loss": lambda: healthy(loss=np.where(np.arange(SAMPLES) % 3, 2.0, 3.5)),
    "frozen encoder, trained head": lambda: healthy(
        resid_grad_norm=layers(flat(1e-3)) * np.array([np.nan, np.nan, np.nan, 1.0]),
        grad_rms=layers(flat(1e-4)) * np.array([np.nan, np.nan, np.nan, 1.0]),
        adam_rms=layers(flat(0.7)) * np.array([np.nan, np.nan, np.nan, 1.0])),
    "heads padded with NaN": lambda: healthy(
        max_attn_logit=at(heads(flat(12.0)), (1, 3), flat(np.nan)),
        attn_entropy_ratio=at(heads(flat(0.7)), (1, 3), flat(np.nan)),
        query_norm=at(heads(flat(9.0)), (1, 3), flat(np.nan))),
    "previous-token heads": lambda: healthy(attn_entropy_ratio=at(heads(flat(0.6)), (1, 2), rise(0.9, 0.02))),
    "one odd sample": lambda: healthy(
        max_attn_logit=at(heads(flat(12.0)), (1, 2), spiked(12.0, 39, 5000.0)),
        attn_entropy_ratio=at(heads(flat(0.7)), (1, 2), spiked(0.7, 39, 0.001)),
        resid_grad_norm=at(layers(flat(1.0)), (0,), spiked(1.0, 39, 1e-7)),
        grad_rms=at(layers(flat(1e-5)), (0,), spiked(1e-5, 39, 1e-12))),
    "every other sample is missing": lambda: healthy(
        max_attn_logit=np.where((np.arange(SAMPLES) % 2)[:, None, None] == 1, heads(flat(12.0)), np.nan)),
    "scaled gradients": lambda: healthy(resid_grad_norm=layers(65536 * 2.0 ** -np.floor(10 * T))),
}
