"""LR sensitivity of the user's own model: a sweep over learning rates, each run under observation."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stabilitylens._postmortem import postmortem
from stabilitylens.errors import BadInput
from stabilitylens.hooks.attaching import attach
from stabilitylens.hooks.sweep import LRSensitivity, largest, last_entropy, late_loss
from stabilitylens.hooks.sweep_input import (
    batches_of,
    check_functions,
    check_numbers,
    folders_of,
    made,
    pair,
    rates_of,
    scalar,
)
from stabilitylens.rules import RULES
from stabilitylens.rules._rule import Rule
from stabilitylens.run import Run, load

Batch = tuple[Any, Tensor]
#: what a rule judges that needs a recording
RECORDED = "the recording"
LossFunction = Callable[[nn.Module, Batch], Tensor]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of ``model(inputs)`` against targets, in nat; −100 is left out."""
    inputs, targets = pair(batch)
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def lr_sensitivity(
    make_model: Callable[[], nn.Module],
    data: Callable[[], Iterable[Any]],
    lrs: Sequence[float],
    *,
    loss: LossFunction = cross_entropy,
    warmup: int = 10,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    max_grad_norm: float | None = 1.0,
    logdir: str | Path | None = None,
    every: int = 10,
    seed: int = 0,
) -> LRSensitivity:
    """Train the same model at several learning rates and say how much the final loss depends on them.

    Args:
        make_model: makes a fresh model, on its device; called with the same random state each time.
        data: gives an iterator over the batches of one run; every step takes one.
        lrs: positive learning rates, at least two, best evenly spaced in their logarithm.
        loss: from model and batch to the mean loss; cross-entropy of ``(inputs, targets)`` by default.
        warmup: steps over which the learning rate rises; constant afterwards.
        optimizer: called as ``optimizer(parameters, lr)``.
        max_grad_norm: gradients are clipped to this norm, None for no clipping.
        logdir: recordings go into its folders ``lr_…``; a temporary folder, gone afterwards, where None.
        every: one step in so many is sampled.
        seed: of each run.

    Raises:
        BadInput: fewer than two learning rates, one that is not positive, data that has no batch or not as many at each
            call, a model or batches where a function is needed that makes them.
    """
    rates = rates_of(lrs)
    check_functions(make_model, data, loss, optimizer)
    check_numbers(warmup, max_grad_norm, every)
    with tempfile.TemporaryDirectory() as scratch:
        folders = folders_of(rates, Path(logdir or scratch))
        model, steps = None, 0
        for lr, folder in folders.items():
            torch.manual_seed(seed)
            model = made(make_model, model)
            took = _train(model, optimizer(model.parameters(), lr), batches_of(data), loss, warmup, max_grad_norm, folder, every)
            steps = steps or took
            if took != steps:
                raise BadInput(f"data() gave {steps} batches at first and {took} at learning rate {lr:g}; it has to give as many at each call")
        runs = tuple(load(folder) for folder in folders.values())
    first, everywhere = _fired(rates, runs)
    return LRSensitivity(
        lrs=np.array(rates),
        losses=np.array([late_loss(run) for run in runs]),
        initial_loss=float(np.mean([run["loss"].values[0] for run in runs])),
        max_attn_logit=np.array([largest(run, "max_attn_logit") for run in runs]),
        attn_entropy_ratio=np.array([last_entropy(run) for run in runs]),
        first_fired=first,
        everywhere=everywhere,
        runs=runs,
    )


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any], loss: LossFunction,
    warmup: int, max_grad_norm: float | None, folder: Path, every: int,
) -> int:  # fmt: skip
    """Train, and count the steps."""
    rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup)))
    recipe = {"warmup_steps": warmup, "max_grad_norm": max_grad_norm}
    steps = 0
    with attach(model, optimizer, folder, every=every, recipe=recipe) as lens:
        for batch in batches:
            steps += 1
            value = scalar(loss(model, batch))
            value.backward()
            lens.grads_ready()
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            rise.step()
            lens.step(value)
    if not steps:
        raise BadInput("lr_sensitivity was given data without a batch; data() has to give a fresh iterator at each call")
    return steps


def _fired(rates: Sequence[float], runs: Sequence[Run]) -> tuple[dict[str, float], dict[str, str]]:
    """The smallest learning rate at which each rule fired, and apart from these the rules that say nothing about it."""
    first: dict[str, float] = {}
    count: Counter[str] = Counter()
    for lr, run in zip(rates, runs, strict=True):
        codes = sorted({finding.code for finding in postmortem(run).findings if finding.verdict == "fired"})
        count.update(codes)
        first = {code: lr for code in codes} | first
    about = {code: _about(RULES[code]) for code in sorted(first)}
    everywhere = {code: what for code, what in about.items() if count[code] == len(runs) or what != RECORDED}
    return {code: first[code] for code in about if code not in everywhere}, everywhere


def _about(rule: Rule) -> str:
    """What a rule judges; one that needs nothing looks at whatever there is, and here that is a recording."""
    return RECORDED if not rule.needs or not rule.static else " and ".join(f"the {need}" for need in rule.needs)
