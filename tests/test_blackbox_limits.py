"""What the black box leaves out for want of room or by wish, and says so; what a file of it holds."""

from __future__ import annotations

import json
from collections import namedtuple

import numpy as np
import pytest
import torch
from blackbox_runs import again, train
from boxed import dumped, trained
from torch import nn
from training import Decoder, tokens

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.evidence import INCIDENTS, Evidence
from stabilitylens.hooks.blackbox.plain import Keeping, as_given


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
    assert evidence.manifest.left_out["step 1: batch.image"] == "its 0.0 MB are more than the 0.0 MB that max_bytes leaves"
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


@pytest.mark.parametrize("make", [torch.from_numpy, lambda b: torch.from_numpy(b)[1:], lambda b: b])
def test_a_buffer_of_numpy_that_is_written_anew_is_copied(make, tmp_path):
    buffer = np.zeros((2, 1 << 17))
    path = trained(tmp_path, [{"x": tokens(), "noise": make(buffer)}] * 3, True, after=lambda step: buffer.fill(step))
    assert [float(Evidence(path).batches(s)[0]["noise"][0][0]) for s in (1, 2, 3)] == [0, 1, 2]


def test_a_tensor_whose_memory_numpy_has_been_given_is_copied(tmp_path):
    noise = torch.zeros(1, 1 << 17)
    buffer = noise.numpy()
    path = trained(tmp_path, [{"x": tokens(), "noise": noise}] * 2, True, after=lambda step: buffer.fill(step))
    assert float(Evidence(path).batches(2)[0]["noise"][0][0]) == 1


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


def test_text_bytes_numbers_and_ids_count(tmp_path):
    def batch():
        return {"x": tokens(), "jpegs": [bytes(1 << 18)] * 8, "text": "x" * (1 << 21), "ints": list(range(50_000)), "short": "a"}

    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(max_bytes=1 << 20)) as lens:
        for _ in range(3):
            for _ in range(2):
                lens.batch(batch(), ids=["y" * (1 << 20)])
                loss = model(batch()["x"])
            lens.step(loss)
        path = lens.dump()
    assert sum(f.stat().st_size for f in path.rglob("*")) < 1 << 20
    left_out = json.loads((path / "manifest.json").read_text())["left_out"]
    assert {p.removeprefix("step 3: ") for p in left_out if p.startswith("step 3")} == {"batch.jpegs", "batch.text", "batch.ints", "ids"}
    assert left_out["step 3: batch.text"] == "its 2.1 MB are more than the 1.0 MB that max_bytes leaves"


def test_micro_batches_of_one_step_share_the_room(tmp_path):
    model = Decoder()
    with sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path, blackbox=sl.BlackBox(max_bytes=10_000)) as lens:
        for _ in range(2):
            lens.batch({"x": tokens(), "more": torch.zeros(1500)})
            loss = model(tokens())
        lens.step(loss)
        assert Evidence(lens.dump()).manifest.left_out.keys() == {"step 1: batch.more"}


class Starred(Decoder):
    def forward(self, *args, **kwargs):
        return super().forward(args[0] if args else kwargs["x"])


Pair = namedtuple("Pair", "x labels")


@pytest.mark.parametrize(("named", "give", "call"), [
    (False, None, lambda m, x, secret: m(x, secret)),
    (True, None, lambda m, x, secret: m(x=x, labels=secret)),
    (True, lambda x, secret: {"x": x, "more": [("labels", secret)]}, lambda m, x, secret: m(x)),
    (False, lambda x, secret: (x, secret), lambda m, x, secret: m(x)),
    (True, lambda x, secret: [{"x": x}, {"labels": secret}], lambda m, x, secret: m(x)),
    (True, Pair, lambda m, x, secret: m(x)),
])  # fmt: skip
def test_what_a_mask_may_mean_but_has_no_name_is_left_out(named, give, call, tmp_path):
    x, secret = tokens(), torch.full((4,), 1234567.0)
    model = Starred()
    with sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path, blackbox=sl.BlackBox(mask=["labels"])) as lens:
        if give:
            lens.batch(give(x, secret))
        loss = call(model, x, secret)
        loss.backward()
        lens.step(loss)
        path = lens.dump()
        assert not lens.guard.failures
    assert secret.numpy().tobytes() not in (path / "rank_0" / "steps.pt").read_bytes()
    left_out = json.loads((path / "manifest.json").read_text())["left_out"]
    assert ("masked" in left_out.values()) is named
    if not named:
        with pytest.raises(BadInput, match="lack batch .*no names.*function as mask="):
            Evidence(path).batches(1)


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
            if step >= 4:
                lens.dump(f"reason {step}")
    kept, size = dumped(tmp_path), sum(f.stat().st_size for f in (tmp_path / INCIDENTS).rglob("*") if f.is_file())
    assert kept == ["step_4", "step_5", "step_6", "step_7", "step_8", "step_9"][-len(kept) :] and len(kept) < 6 and size <= 1 << 20
    assert "step_4 made room" in next(e.text for e in sl.load(tmp_path).events if e.kind == "incident_removed")


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


@pytest.mark.parametrize("options", [{"keep": 0}, {"snapshot_every": -1}, {"snapshot": "cloud"}, {"mask": "labels"}, {"mask": 3}, {"max_bytes": 1.5},
                                     {"mask": [[]]}, {"mask": b"x"}, {"scheduler": 3}, {"scheduler": "x"}, {"scheduler": {1: 2}}])  # fmt: skip
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
