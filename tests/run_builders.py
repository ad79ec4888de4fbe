"""Runs built in memory: 4 layers × 4 heads, 300 steps of loss, every tenth step sampled."""

from __future__ import annotations

import numpy as np

from stabilitylens.anatomy import Anatomy, AttentionCall, SubLayer
from stabilitylens.header import Coverage, Header, MetricMeta
from stabilitylens.recipe import Recipe
from stabilitylens.run import Run, Series

LAYERS, HEADS, STEPS, EVERY = 4, 4, 300, 10
NAMES = tuple(f"blocks.{i}" for i in range(LAYERS))
METRICS = (
    MetricMeta("loss", "nat", ("",), "Mean token cross-entropy.", "high"),
    MetricMeta("grad_norm", "1", ("",), "L2 over all trainable parameters, before clipping.", "high"),
    MetricMeta("max_attn_logit", "1", ("attention head",), "Largest q·k·scale over visible pairs.", "high"),
    MetricMeta("attn_entropy_ratio", "1", ("attention head",), "Mean of H / ln(visible keys).", "low"),
    MetricMeta("query_norm", "1", ("attention head",), "Mean L2 norm of the queries.", "high"),
    MetricMeta("key_norm", "1", ("attention kv_head",), "Mean L2 norm of the keys.", "high"),
    MetricMeta("resid_rms", "1", ("layer",), "RMS of the residual stream after each block.", "high"),
    MetricMeta("resid_grad_norm", "1", ("layer",), "L2 of the gradient of each block's output.", "high"),
    MetricMeta("update_rms", "1", ("layer",), "RMS of the update over the learning rate.", "high"),
)
SAMPLED = np.arange(0, STEPS, EVERY)


def header(qk_norm: str = "none") -> Header:
    calls = tuple(AttentionCall(i, f"{n}.attn", HEADS, 16, qk_norm, None, None, 0.25) for i, n in enumerate(NAMES))
    subs = tuple(
        SubLayer(i, kind, f"{n}.{m}", "pre", "layernorm")
        for i, n in enumerate(NAMES) for kind, m in (("attention", "attn"), ("feed_forward", "mlp"))
    )
    anatomy = Anatomy(
        norm_placement="pre", norm_kind="layernorm", qk_norm=qk_norm, final_norm=True, n_layers=LAYERS,
        n_attention=LAYERS, n_parameters=215_000, d_model=64, n_heads=HEADS, d_head=16, attention_scale=0.25,
        layers=NAMES, sub_layers=subs, attention_calls=calls,
    )
    return Header(
        metrics={m.name: m for m in METRICS},
        labels={"layer": NAMES, "attention": tuple(f"{n}.attn" for n in NAMES)},
        anatomy=anatomy,
        recipe=Recipe(optimizer="AdamW", lr=0.1, beta1=0.9, beta2=0.95, eps=1e-8, warmup_steps=30),
        sampling={"every": EVERY},
        coverage=Coverage((48, 48), (4, 4), (4, 4), (("grad_norm", "lens.grads_ready() was not called"),)),
    )


def scalar(name: str, values: np.ndarray, steps: np.ndarray | None = None) -> Series:
    return Series(name, np.arange(len(values)) if steps is None else steps, values)


def array(name: str, values: np.ndarray, axes: tuple[str, ...], steps: np.ndarray = SAMPLED) -> Series:
    meta = next(m for m in METRICS if m.name == name.partition("/")[0])
    labels = {"layer": NAMES, "attention": tuple(f"{n}.attn" for n in NAMES)}
    return Series(name, steps, values, axes, {a: labels[a] for a in axes if a in labels}, meta.unit, meta.definition)


def build(*, growth: float, path: str, qk_norm: str = "none", seed: int = 0) -> Run:
    """A run whose attention logits grow from 3 by the factor ``growth``, most in layer 2, head 1."""
    rng = np.random.default_rng(seed)
    t = SAMPLED / STEPS
    noise = lambda *shape: np.exp(0.05 * rng.normal(size=(len(t), *shape)))  # noqa: E731
    share = 0.5 * np.ones((LAYERS, HEADS)) + 0.2 * rng.random((LAYERS, HEADS))
    share[2, 1] = 1.0
    logits = 3 * growth ** (t[:, None, None] * share) * noise(LAYERS, HEADS)
    by_layer = ("layer",)
    series = [
        scalar("loss", 2.4 + 3.1 * np.exp(-np.arange(STEPS) / 60) + 0.03 * rng.normal(size=STEPS)),
        scalar("grad_norm", np.exp(0.1 * rng.normal(size=STEPS)) * (1 + 2 * np.exp(-np.arange(STEPS) / 30))),
        array("max_attn_logit/attention_head", logits, ("attention", "head")),
        array("attn_entropy_ratio/attention_head", 1 / (1 + 0.08 * logits**0.7), ("attention", "head")),
        array("query_norm/attention_head", 4 * np.sqrt(logits), ("attention", "head")),
        array("key_norm/attention_kv_head", 4 * np.sqrt(logits), ("attention", "kv_head")),
        array("resid_rms/layer", (1 + np.arange(LAYERS)) * (1 + t[:, None]) * noise(LAYERS), by_layer),
        array("resid_grad_norm/layer", 0.1 * noise(LAYERS) / (1 + np.arange(LAYERS)), by_layer),
        array("update_rms/layer", 0.3 * noise(LAYERS), by_layer),
    ]
    return Run(path, {s.name: s for s in series}, header(qk_norm), "recording")


def healthy(path: str = "runs/qk_norm") -> Run:
    return build(growth=2.5, path=path, qk_norm="head", seed=1)


def logit_growth(path: str = "runs/base") -> Run:
    return build(growth=8000.0, path=path)
