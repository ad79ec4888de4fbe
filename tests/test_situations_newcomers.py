"""Optimizers that come later than the lens: a new one for a new stage, for what was unfrozen, one that wraps the first, none at all."""

from __future__ import annotations

import gc
import warnings
import weakref

import numpy as np
import pytest
import torch
from loops import in_block, norm, observed
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks
from training import Decoder, loss_of, tokens

import stabilitylens as sl
from stabilitylens.hooks.guard import LensWarning


def model_of(depth: int = 2) -> nn.Module:
    return Decoder(depth=depth)


def steps(model, optimizer, lens, count, wanted=None):
    losses = []
    for _ in range(count):
        loss = loss_of(model, tokens())
        loss.backward()
        lens.grads_ready()
        if wanted is not None:
            wanted.append(norm(p.grad for p in model.parameters() if p.grad is not None))
        optimizer.step()
        optimizer.zero_grad()
        lens.step(loss)
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_new_optimizer_for_the_same_parameters_is_observed_from_its_first_step(kind, tmp_path):
    def loop(attach):
        model = model_of()
        first = torch.optim.AdamW(model.parameters(), 1e-3)
        lens = attach(model, first)
        losses = steps(model, first, lens, 3)
        return model, losses + steps(model, kind(model.parameters(), 1e-2), lens, 3)

    with pytest.warns(LensWarning, match=f"{kind.__name__}.*in place of AdamW.*from step 4 on") as said:
        run = observed(loop, tmp_path)
    assert len([w for w in said if "in place of" in str(w.message)]) == 1
    assert "skipped" not in run
    assert run["lr"].values == pytest.approx([1e-3] * 3 + [1e-2] * 3)
    assert run["grad_norm_clipped"].steps.tolist() == list(range(1, 7))
    assert (run["update_ratio/layer"].values > 0).all() and len(run["update_ratio/layer"]) == 6
    assert [(e.step, e.kind) for e in run.events] == [(4, "optimizer_adopted")]


def test_what_is_unfrozen_and_given_to_an_optimizer_of_its_own(tmp_path):
    wanted: list[float] = []

    def loop(attach):
        wanted.clear()
        model = model_of()
        for p in in_block(model, 0):
            p.requires_grad_(False)
        first = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-2)
        lens = attach(model, first)
        losses = steps(model, first, lens, 2, wanted)
        for p in in_block(model, 0):
            p.requires_grad_(True)
        both = [first, torch.optim.SGD(in_block(model, 0), 1e-3)]

        class Both:
            def step(self):
                for o in both:
                    o.step()

            def zero_grad(self):
                for o in both:
                    o.zero_grad()

        return model, losses + steps(model, Both(), lens, 3, wanted)

    with pytest.warns(LensWarning, match="SGD.*steps parameters of the model, which"):
        run = observed(loop, tmp_path)
    layer = run["update_ratio/layer"]
    assert np.isnan(layer.values[:2, 0]).all() and (layer.values[2:] > 0).all()
    # at step 3 the gradients were read before anybody knew of the new ones, so that their norm is of a part
    at = dict(zip(run["grad_norm"].steps.tolist(), run["grad_norm"].values.tolist(), strict=True))
    assert sorted(at) == [1, 2, 4, 5]
    assert [at[s] for s in (1, 2, 4, 5)] == pytest.approx([wanted[i] for i in (0, 1, 3, 4)], rel=1e-5)


class Outer(torch.optim.Optimizer):
    """One that wraps another and calls its step, as SAM and Lookahead do."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        return self.inner.step(closure)


@pytest.mark.parametrize("later", [False, True])
def test_an_optimizer_within_an_optimizer_is_one_step(later, tmp_path):
    def loop(attach):
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), 1e-2)
        outer = Outer(inner)
        lens = attach(model, inner if later else outer)
        return model, steps(model, outer, lens, 3)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = observed(loop, tmp_path)
    assert len([w for w in said if "in place of" in str(w.message)]) == int(later)
    assert run["grad_norm"].values == pytest.approx(run["grad_norm_clipped"].values, rel=1e-6)
    assert run["grad_norm"].steps.tolist() == [1, 2, 3] and "skipped" not in run


def test_optimizers_of_other_models_are_left_alone(tmp_path):
    def loop(attach):
        model, other = model_of(), model_of(1)
        mine, theirs = (torch.optim.SGD(m.parameters(), 1e-2) for m in (model, other))
        lens, losses = attach(model, mine), []
        for _ in range(3):
            losses += steps(model, mine, lens, 1)
            loss_of(other, tokens()).backward()
            theirs.step()
        assert not theirs._optimizer_step_pre_hooks
        return model, losses

    run = observed(loop, tmp_path)
    assert not run.events and len(run["loss"]) == 3


def test_steps_by_hand_are_no_skipped_steps_and_said_once(tmp_path):
    def loop(attach):
        model = model_of()
        lens, losses = attach(model, torch.optim.SGD(model.parameters(), 1e-2)), []
        for _ in range(4):
            loss = loss_of(model, tokens())
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 1e-2 * p.grad
                    p.grad = None
            lens.step(loss)
            losses.append(loss.detach())
        return model, losses

    with pytest.warns(LensWarning, match="parameters change although no optimizer") as said:
        run = observed(loop, tmp_path)
    assert len([w for w in said if "although" in str(w.message)]) == 1
    assert "skipped" not in run and not run.events


def test_a_loop_that_leaves_steps_out_has_skipped_them(tmp_path):
    def loop(attach):
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        lens, losses = attach(model, optimizer), []
        for i in range(4):
            loss = loss_of(model, tokens())
            loss.backward()
            if i % 2:
                optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
            losses.append(loss.detach())
        return model, losses

    run = observed(loop, tmp_path)
    assert [e.step for e in run.events if e.kind == "step_skipped"] == [1, 3]


def test_a_lens_that_is_forgotten_is_not_kept_alive_by_what_listens(tmp_path):
    before = len(_global_optimizer_pre_hooks)
    with sl.attach(model_of(), [], tmp_path / "closed"):
        assert len(_global_optimizer_pre_hooks) == before + 1
    assert len(_global_optimizer_pre_hooks) == before
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    gone = weakref.ref(sl.attach(model, optimizer, tmp_path / "forgotten"))
    old = weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert gone() is None and old() is None
    with sl.attach(model_of(), [], tmp_path / "next"):  # sweeps what the forgotten one left
        assert len(_global_optimizer_pre_hooks) == before + 1


def test_the_state_of_an_optimizer_that_was_replaced_is_not_kept(tmp_path):
    model = model_of()
    first = torch.optim.AdamW(model.parameters(), 1e-3)
    old = weakref.ref(first)
    with sl.attach(model, first, tmp_path) as lens:
        steps(model, first, lens, 1)
        with pytest.warns(LensWarning, match="in place of"):
            steps(model, torch.optim.AdamW(model.parameters(), 1e-3), lens, 1)
        del first
        gc.collect()
        assert old() is None


def test_parameters_that_are_put_in_place_of_others_are_read_in_their_place(tmp_path):
    wanted: list[float] = []

    def loop(attach):
        model = model_of()
        first = torch.optim.AdamW(model.parameters(), 1e-3)
        lens = attach(model, first)
        losses = steps(model, first, lens, 2, wanted)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 9.0)  # what is left of an earlier step is no gradient of this one
        model.load_state_dict({n: t.clone() for n, t in model.state_dict().items()}, assign=True)
        return model, losses + steps(model, torch.optim.AdamW(model.parameters(), 1e-3), lens, 3, wanted)

    with pytest.warns(LensWarning, match="put in place of those"):
        run = observed(loop, tmp_path)
    count = len(list(model_of().parameters()))
    assert run.header.coverage.parameters == (count, count)
    assert run["grad_norm"].steps.tolist() == [1, 2, 3, 4, 5]
    assert run["grad_norm"].values == pytest.approx(wanted[-5:], rel=1e-5)
    assert run["update_ratio/layer"].steps.tolist() == [1, 2, 3, 4, 5] and (run["update_ratio/layer"].values > 0).all()
    assert (3, "model_changed") in [(e.step, e.kind) for e in run.events]


def test_a_block_that_is_added_midway_is_a_layer_from_there_on(tmp_path):
    wanted: list[float] = []

    def loop(attach):
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        lens = attach(model, optimizer)
        losses = steps(model, optimizer, lens, 2, wanted)
        model.blocks.append(Decoder(depth=1).blocks[0])
        optimizer.add_param_group({"params": list(model.blocks[2].parameters())})
        return model, losses + steps(model, optimizer, lens, 2, wanted)

    with pytest.warns(LensWarning, match="blocks.2 and .* more modules came into the model"):
        run = observed(loop, tmp_path)
    labels = run.header.labels
    assert labels["layer"] == ("blocks.0", "blocks.1", "blocks.2") and run.header.coverage.layers == (3, 3)
    assert not [g for g in labels["group"] if g.startswith("blocks.")]
    assert run["grad_norm"].values == pytest.approx(wanted[-4:], rel=1e-5)
    assert np.isfinite(run["resid_rms"].values[3]).all() and np.isfinite(run["grad_norm/layer"].values[2]).all()
    assert "blocks.2.attn" in labels["attention"] and (3, "model_changed") in [(e.step, e.kind) for e in run.events]
