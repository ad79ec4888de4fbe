"""What the black box keeps, what it leaves out and says so, and that training is what it was."""

from __future__ import annotations

import json
from collections import namedtuple

import numpy as np
import pytest
import torch
from blackbox_runs import KINDS, again, train
from torch import nn
from training import Decoder, tokens

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.evidence import INCIDENTS, Evidence
from stabilitylens.hooks.blackbox.plain import Keeping, as_given
from stabilitylens.hooks.blackbox.randoms import random_state


def dumped(folder):
    return sorted(p.name for p in (folder / INCIDENTS).iterdir()) if (folder / INCIDENTS).exists() else []


def trained(folder, batches, box, *, given=True, forward=lambda model, batch: model(batch["x"]), after=lambda step: None, dump=True):
    """A run of as many steps as batches; the lens, closed."""
    torch.manual_seed(0)
    model = Decoder().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    lens = sl.attach(model, optimizer, folder, blackbox=box)
    for step, batch in enumerate(batches, 1):
        if given:
            lens.batch(batch)
        loss = forward(model, batch)
        loss.backward()
        lens.grads_ready()
        optimizer.step()
        optimizer.zero_grad()
        lens.step(loss)
        after(step)
    path = lens.dump() if dump else None
    assert not lens.guard.failures, lens.guard.failures
    lens.close()
    return path


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


def test_only_the_last_steps_are_kept(tmp_path):
    path = trained(tmp_path, [{"x": tokens()} for _ in range(9)], sl.BlackBox(keep=3))
    assert Evidence(path).steps == [7, 8, 9]


def test_the_oldest_steps_go_where_bytes_run_out(tmp_path):
    batches = [{"x": tokens(), "more": torch.zeros(1000)} for _ in range(9)]
    path = trained(tmp_path, batches, sl.BlackBox(keep=8, max_bytes=10_000))
    assert Evidence(path).steps == [8, 9]


def test_what_is_too_large_is_left_out_and_said(tmp_path):
    path = trained(tmp_path, [{"x": tokens(), "image": torch.zeros(10_000)}], sl.BlackBox(max_bytes=10_000))
    evidence = Evidence(path)
    assert evidence.manifest.left_out["step 1: batch.image"] == "its 0.0 MB are more than the 0.0 MB of max_bytes"
    with pytest.raises(BadInput, match="the micro-batches of step 1 lack batch.image .its 0.0 MB are more"):
        evidence.batches(1)


@pytest.mark.parametrize("large", [False, True])
def test_a_batch_that_is_overwritten_in_place_is_not_replayed_wrongly(large, tmp_path):
    buffer = torch.zeros(1 << 17 if large else 4)
    batches = [{"x": tokens(), "noise": buffer}] * 3
    path = trained(tmp_path, batches, True, after=lambda step: buffer.fill_(step))
    if not large:  # copied
        assert [float(Evidence(path).batches(s)[0]["noise"][0]) for s in (1, 2, 3)] == [0, 1, 2]
        return
    evidence = Evidence(path)
    assert evidence.manifest.left_out["step 3: batch.noise"] == "it was overwritten in place after the step had begun"
    with pytest.raises(BadInput, match="lack batch.noise"):
        evidence.batches(3)


@pytest.mark.parametrize(("given", "mask"), [
    (True, ["secret"]),
    (True, lambda batch: {"x": batch["x"]}),
    (False, ["secret"]),
])  # fmt: skip
def test_masked_fields_are_in_no_file(given, mask, tmp_path):
    secret = torch.full((4,), 1234567.0)
    torch.manual_seed(0)

    class Model(Decoder):
        def forward(self, x, secret):
            return super().forward(x) + 0 * secret.sum()

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    lens = sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(mask=mask))
    x = tokens()
    if given:
        lens.batch({"x": x, "secret": secret})
    loss = model(x, secret)
    loss.backward()
    optimizer.step()
    lens.step(loss)
    path = lens.dump()
    assert secret.numpy().tobytes() not in (path / "rank_0" / "steps.pt").read_bytes()
    assert Evidence(path).batches(1)[0].keys() == {"x"}


def test_every_file_loads_with_weights_only(tmp_path):
    train("scaling", tmp_path)
    files = list((tmp_path / INCIDENTS).rglob("*.pt"))
    assert len(files) == 2
    for file in files:
        torch.load(file, weights_only=True)


def test_containers_come_back_as_they_were():
    Pair = namedtuple("Pair", "a b")
    batch = {"x": np.arange(6, dtype=np.int32).reshape(2, 3), "n": np.float32(1.5), "pair": Pair(torch.ones(2), "text"), 3: [None, True, b"b"]}
    keeping = Keeping(1 << 20)
    back = as_given(keeping.take(batch))
    assert not keeping.left_out
    assert back["x"].dtype == np.int32 and np.array_equal(back["x"], batch["x"])
    assert (back["n"], back["pair"][1], back[3]) == (1.5, "text", [None, True, b"b"])
    assert torch.equal(back["pair"][0], torch.ones(2))


def test_what_is_no_plain_data_is_left_out_and_said():
    keeping = Keeping(1 << 20)
    assert keeping.take({"graph": object(), "names": np.array(["a"])}) == {"graph": None, "names": None}
    assert keeping.left_out["batch.graph"] == "it is a object, neither a tensor nor a plain container"
    assert keeping.left_out["batch.names"].startswith("it is an array of <U1")


def test_the_memory_of_snapshots_is_stated_at_attach(tmp_path):
    model = nn.Sequential(nn.Linear(500, 500, bias=False))
    with pytest.warns(sl.hooks.LensWarning, match=r"every 7 steps: 2 × 1.0 MB of weights and, with Adam, 2 × 2.0 MB"):
        sl.attach(model, torch.optim.Adam(model.parameters()), tmp_path, blackbox=sl.BlackBox(snapshot_every=7)).close()


def test_a_snapshot_on_disk_is_the_one_in_memory(tmp_path):
    found = []
    for place in ("memory", "disk"):
        train("accumulating", tmp_path / place, box=sl.BlackBox(snapshot_every=1, snapshot=place))
        found.append(again("accumulating", tmp_path / place))
    assert found[0].exact and found[1].exact
    assert found[1].snapshot_step <= 20
    assert not list((tmp_path / "disk" / "stabilitylens").glob("snapshots/*"))


def test_the_oldest_incident_makes_room(tmp_path):
    box = sl.BlackBox(snapshot_every=5, budget_bytes=1 << 20)
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters())
    with sl.attach(model, optimizer, tmp_path, blackbox=box) as lens:
        for step in range(1, 10):
            loss = model(tokens())
            loss.backward()
            optimizer.step()
            lens.step(loss)
            if step >= 8:
                lens.dump(f"reason {step}")
    assert dumped(tmp_path) == ["step_9"]
    assert "step_8 made room" in next(e.text for e in sl.load(tmp_path).events if e.kind == "incident_removed")


def test_a_snapshot_beyond_the_budget_is_left_out_and_said(tmp_path):
    path = trained(tmp_path, [{"x": tokens()} for _ in range(3)], sl.BlackBox(snapshot_every=5, budget_bytes=300_000))
    assert json.loads((path / "manifest.json").read_text())["snapshot_step"] is None
    with pytest.raises(BadInput, match="no snapshot was kept before step 3.* MB of budget_bytes"):
        Evidence(path).snapshot()


@pytest.mark.parametrize("wrong", ["yes", {"keep": 3}, 3])
def test_a_black_box_that_is_none(wrong, tmp_path):
    model = Decoder()
    with pytest.raises(BadInput, match="blackbox="):
        sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path, blackbox=wrong)


@pytest.mark.parametrize("options", [{"keep": 0}, {"snapshot_every": -1}, {"snapshot": "cloud"}, {"mask": "labels"}, {"mask": 3}, {"max_bytes": 1.5}])
def test_options_out_of_range(options):
    with pytest.raises(BadInput, match=next(iter(options))):
        sl.BlackBox(**options)


def test_without_a_black_box_its_calls_do_nothing_and_say_so(tmp_path):
    model = Decoder()
    with sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path) as lens:
        with pytest.warns(sl.hooks.LensWarning, match="blackbox=True"):
            assert lens.batch([1]) == [1]
        with pytest.warns(sl.hooks.LensWarning, match="blackbox=True"):
            assert lens.dump() is None


def test_attaching_draws_no_random_numbers(tmp_path):
    model = KINDS["poisoned"][0]().model
    before = random_state(torch.device("cpu"))
    sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path, blackbox=True).close()
    after = random_state(torch.device("cpu"))
    assert torch.equal(before["torch"], after["torch"])
    assert np.array_equal(before["numpy"][1], after["numpy"][1]) and before["numpy"][2] == after["numpy"][2]
