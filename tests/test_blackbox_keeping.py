"""What the black box keeps of a loop, and that training is what it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from blackbox_runs import KINDS, train
from boxed import dumped, trained
from training import Decoder, tokens

import stabilitylens as sl
from stabilitylens.hooks.blackbox.evidence import Evidence
from stabilitylens.hooks.blackbox.randoms import random_state


# "poisoned" draws from Python's random, as does beartype, which checks types in the tests
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "poisoned"])
def test_training_is_equal_to_the_bit(kind, tmp_path):
    bare, again = (repr(train(kind, tmp_path, lens_on=False)) for _ in range(2))
    assert bare == again, "the loop is not equal to itself"
    for i, box in enumerate((sl.BlackBox(snapshot_every=3, snapshot="disk"), sl.BlackBox(keep=1))):
        assert repr(train(kind, tmp_path / str(i), box=box, dump=False)) == bare


def test_a_healthy_run_dumps_nothing(tmp_path):
    train("accumulating", tmp_path, steps=150, dump=False, box=True)
    assert dumped(tmp_path) == []


def test_a_bad_step_is_dumped_once(tmp_path):
    train("poisoned", tmp_path, steps=40, dump=False)
    assert dumped(tmp_path) == ["step_18"]
    kinds = [e.kind for e in sl.load(tmp_path).events]
    assert kinds.count("incident_dumped") == 1


def test_the_closed_box_leaves_nothing_on_model_and_optimizer(tmp_path):
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters())
    sl.attach(model, optimizer, tmp_path, blackbox=True).close()
    assert not model._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks


def test_evaluation_and_generation_are_not_kept(tmp_path):
    model = Decoder().train()
    optimizer = torch.optim.AdamW(model.parameters())
    lens = sl.attach(model, optimizer, tmp_path, blackbox=True)
    for _ in range(2):
        with torch.no_grad():
            model(tokens())
        model.eval()
        model(tokens())
        model.train()
        x = tokens()
        loss = model(x)
        loss.backward()
        optimizer.step()
        lens.step(loss)
    evidence = Evidence(lens.dump())
    assert evidence.steps == [1, 2]
    assert torch.equal(*evidence.batches(2), x)


@pytest.mark.parametrize(("call", "expected"), [
    (lambda m, x: m(x), lambda x: x),
    (lambda m, x: m(x=x), lambda x: {"x": x}),
])  # fmt: skip
def test_a_forward_s_inputs_are_kept_as_the_model_was_called(call, expected, tmp_path):
    x = tokens()
    path = trained(tmp_path, [{"x": x}], True, given=False, forward=lambda m, b: call(m, b["x"]))
    (found,), wanted = Evidence(path).batches(1), expected(x)
    assert torch.equal(found, x) if wanted is x else torch.equal(found["x"], x) and found.keys() == {"x"}


def test_a_compiled_model_is_replayed_from_the_batches_that_the_loop_gives(tmp_path):
    def fresh():
        torch.manual_seed(0)
        model = Decoder().train()
        return model, torch.optim.AdamW(model.parameters(), 1e-3)

    def step(model, optimizer, batches, lens=None):
        losses = []
        for batch in batches:
            loss = model(lens.batch(batch) if lens else batch)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        return sum(losses) / 2

    model, optimizer = fresh()
    with sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(snapshot_every=3)) as lens:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for _ in range(8):
            lens.step(step(compiled, optimizer, [tokens(), tokens()], lens))
        lens.dump()
        assert not lens.guard.failures
    model, optimizer = fresh()
    found = sl.replay(tmp_path, model, optimizer, lambda m, o, batches: step(torch.compile(m, backend="eager"), o, batches))
    assert found.exact and len(found.losses) > 3, found.difference


def test_a_compiled_model_without_its_batches_is_said(tmp_path):
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with sl.attach(model, optimizer, tmp_path, blackbox=True) as lens:
        loss = torch.compile(model, backend="eager", fullgraph=True)(tokens())
        loss.backward()
        optimizer.step()
        with pytest.warns(sl.hooks.LensWarning, match="call lens.batch"):
            lens.step(loss)


def test_a_closure_that_runs_the_model_several_times(tmp_path):
    torch.manual_seed(0)
    model = Decoder().train()

    def step(model, optimizer, batches):
        (batch,) = batches

        def closure():
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            return loss

        return optimizer.step(closure)

    make = lambda: torch.optim.LBFGS(model.parameters(), 1e-2, max_iter=3)  # noqa: E731
    optimizer = make()
    with sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(snapshot_every=2)) as lens:
        for _ in range(5):
            lens.step(step(model, optimizer, [lens.batch(tokens())]))
        lens.dump()
    found = sl.replay(tmp_path, model, make(), step, samples=False)
    assert found.exact, found.difference


def test_attaching_draws_no_random_numbers(tmp_path):
    model = KINDS["poisoned"][0]().model
    before = random_state(torch.device("cpu"))
    sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path, blackbox=True).close()
    after = random_state(torch.device("cpu"))
    assert torch.equal(before["torch"], after["torch"])
    assert np.array_equal(before["numpy"][1], after["numpy"][1]) and before["numpy"][2] == after["numpy"][2]
