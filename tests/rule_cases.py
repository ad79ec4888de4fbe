"""All cases of the rules, and the runs that must alarm nobody."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stabilitylens.rules import Evidence
from tests.rule_band import BAND
from tests.rule_pairs import PAIRS
from tests.rule_runs import (
    AXES,
    HEADS,
    LAYERS,
    RECIPE,
    SAMPLES,
    STEPS,
    Case,
    T,
    anatomy,
    at,
    everywhere,
    flat,
    heads,
    initial,
    layers,
    modules,
    noise,
    rise,
    run,
    skipping,
    spiked,
    static,
)


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
        log_z=10.8 - 5 * learned + np.log(noise(seed)), masked_rows=heads(flat(0.0)),
        update_rms=layers(0.2 + 0.8 * np.exp(-9 * T), seed), grad_norm__layer=layers(0.2 + np.exp(-5 * T), seed),
        grad_norm__group=everywhere(0.1 + np.exp(-5 * T), 2, seed=seed), embedding_rms=flat(0.02),
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
    "a gradient scaler that looks for its scale": lambda: skipping(
        healthy(loss_scale=np.maximum(2.0**13, 2.0 ** (16 - np.arange(SAMPLES)))), 0, 10, 20),
    "padding rows see no key": lambda: healthy(masked_rows=heads(flat(24.0))),
    "the learning rate restarts": lambda: healthy(update_rms=layers(np.where(T < 0.5, 0.2, 0.5))),
    "scaled gradients": lambda: healthy(resid_grad_norm=layers(65536 * 2.0 ** -np.floor(10 * T))),
}

__all__ = ["AXES", "BAND", "CONTROLS", "Case", "HEADS", "LAYERS", "PAIRS", "RECIPE", "SAMPLES", "STEPS", "T", "anatomy", "at", "everywhere", "flat", "heads", "initial", "layers", "modules", "noise", "rise", "run", "spiked", "static"]
