"""The rule on missing gradients, on training that is done wrong in each of the ways it knows, and on training that is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rule_runs import STEPS, flat, layers, run, skipping
from torch import nn
from training import Decoder, loss_of, tokens

import stabilitylens as sl
from stabilitylens.rules import RULES
from stabilitylens.rules._rule import verdicts

pytestmark = pytest.mark.filterwarnings("ignore::stabilitylens.hooks.guard.LensWarning")


def cleared_too_early(model, optimizer, loss, i):
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()


def zeroed_too_early(model, optimizer, loss, i):
    loss.backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()


def no_backward(model, optimizer, loss, i):
    optimizer.step()
    optimizer.zero_grad()


def frozen_from_step_8_on(model, optimizer, loss, i):
    if i < 8:
        return healthy(model, optimizer, loss, i)
    model.requires_grad_(False)
    optimizer.step()


def healthy(model, optimizer, loss, i):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def half_frozen(model, optimizer, loss, i):
    for p in model.blocks.parameters():
        p.requires_grad_(False)
    healthy(model, optimizer, loss, i)


def every_other_step_left_out(model, optimizer, loss, i):
    loss.backward()
    if i % 2:
        optimizer.step()
    optimizer.zero_grad()


def found(update, logdir: Path, steps: int = 20, **options):
    torch.manual_seed(0)
    model = Decoder(depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, logdir, **({"every": 1} | options)) as lens:
        for i in range(steps):
            loss = loss_of(model, tokens())
            update(model, optimizer, loss, i)
            lens.step(loss)
    return next(f for f in sl.postmortem(logdir).findings if f.code == "SL307")


@pytest.mark.parametrize(
    ("update", "first", "how"),
    [
        (cleared_too_early, 1, "none of them moved"),
        (zeroed_too_early, 1, "exactly 0"),
        (no_backward, 1, "none of them moved"),
        (frozen_from_step_8_on, 9, "none of them moved"),
    ],
)
def test_an_optimizer_that_steps_without_gradients_is_an_error(update, first, how, tmp_path):
    finding = found(update, tmp_path)
    assert finding.verdict == "fired" and finding.severity == "error" and how in finding.message
    assert finding.where.steps == (first, 20) and finding.observed == 21 - first


@pytest.mark.parametrize("update", [healthy, half_frozen, every_other_step_left_out])
def test_training_that_learns_is_clear(update, tmp_path):
    assert found(update, tmp_path).verdict == "clear"


def test_a_lens_that_samples_rarely_knows_it_from_the_samples(tmp_path):
    assert found(cleared_too_early, tmp_path / "a", 80, every=10).where.steps == (1, 80)
    lacking = found(cleared_too_early, tmp_path / "b", 30, every=10)
    assert lacking.verdict == "not_evaluated" and "has 4 samples, fewer than the 8 needed" in lacking.lacks


def test_a_warm_up_from_zero_and_a_run_without_updates_in_it_are_not_judged(tmp_path):
    def without_rate(model, optimizer, loss, i):
        optimizer.param_groups[0]["lr"] = 0.0
        cleared_too_early(model, optimizer, loss, i)

    assert found(without_rate, tmp_path / "a").verdict == "not_evaluated"
    assert found(cleared_too_early, tmp_path / "b", metrics=["resid_rms"]).verdict == "not_evaluated"


def verdict(evidence):
    (finding,) = verdicts(RULES["SL307"], evidence)
    return finding


def test_steps_that_were_skipped_or_whose_loss_is_nothing_say_nothing():
    dead = flat(0.0)
    assert verdict(run(loss=flat(2.0), grad_norm=dead)).verdict == "fired"
    assert verdict(run(loss=flat(0.0), grad_norm=dead)).verdict == "not_evaluated"
    assert verdict(run(loss=flat(np.nan), grad_norm=dead)).verdict == "not_evaluated"
    assert verdict(skipping(run(loss=flat(2.0), grad_norm=dead), *STEPS.tolist())).verdict == "not_evaluated"


def test_a_few_gradients_of_zero_are_no_finding():
    norm = flat(1.0)
    norm[-7:] = 0.0
    assert verdict(run(loss=flat(2.0), grad_norm=norm)).verdict == "clear"
    norm[-8:] = 0.0
    assert verdict(run(loss=flat(2.0), grad_norm=norm)).where.steps == (320, 390)


def test_a_gradient_that_was_not_observed_is_no_gradient_of_zero():
    assert verdict(run(loss=flat(2.0), grad_norm=flat(np.nan), update_ratio=layers(flat(1e-3)), lr=flat(1e-3))).verdict == "clear"
    assert verdict(run(loss=flat(2.0), grad_norm=flat(np.nan))).verdict == "not_evaluated"


def test_reentrant_checkpointing_of_what_needs_no_gradient_is_found(tmp_path):
    class Frozen(Decoder):
        """Adapters inside, everything else frozen."""

        def __init__(self):
            super().__init__(depth=2, recompute="reentrant")
            for p in self.parameters():
                p.requires_grad_(False)
            for block in self.blocks:
                for p in block.up.parameters():
                    p.requires_grad_(True)

        def forward(self, x):
            return super().forward(x)

    torch.manual_seed(0)
    model = Frozen()
    anchor = nn.Parameter(torch.zeros(()))  # as a second head that trains: without it backward would raise
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        for _ in range(12):
            loss = loss_of(model, tokens()) + anchor
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
    finding = next(f for f in sl.postmortem(tmp_path).findings if f.code == "SL307")
    assert finding.verdict == "fired" and "none of them moved" in finding.message
