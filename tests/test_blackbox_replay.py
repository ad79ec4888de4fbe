"""A dumped incident is run again in a new process, to the bit."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import torch
from blackbox_runs import BAD, KINDS, STEPS, again, train
from training import Decoder, tokens

import stabilitylens as sl

HERE = Path(__file__).parent


def test_every_loss_is_equal_to_the_bit_in_a_new_process(tmp_path):
    """Dropout, accumulation, a schedule, a gradient scaler that skips, NaN: one new process runs them all again."""
    folders = {kind: tmp_path / kind for kind in KINDS}
    losses = {kind: train(kind, folders[kind], dump=kind != "poisoned") for kind in KINDS}
    given = json.dumps({kind: str(folder) for kind, folder in folders.items()})
    done = subprocess.run([sys.executable, "-W", "ignore", HERE / "blackbox_runs.py", given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)
    for kind in KINDS:
        check(losses[kind], runs[kind], BAD if kind == "poisoned" else STEPS)
    assert len(set(runs["scaling"]["losses"].values())) == len(runs["scaling"]["losses"]), "no step was taken in between"
    check_first_bad(runs["poisoned"])


def check(losses, found, last):
    assert found["step"] == last
    assert found["exact"], found["difference"]
    assert list(found["losses"]) == [str(s) for s in range(found["snapshot_step"], last + 1)]
    assert found["snapshot_step"] <= last - 4
    for step, loss in found["losses"].items():
        mine = losses[int(step) - 1]
        assert loss == mine or math.isnan(loss) and math.isnan(mine), step


def check_first_bad(found):
    first = found["first_bad"]
    assert (found["kinds"], first["what"], first["step"]) == (["nonfinite"], "nonfinite", BAD)
    assert (first["module"], first["direction"], first["frame"]["kind"]) == ("gain", "forward", "Gain")
    assert [frame["module"] for frame in first["before"]][-1] == "blocks.0"
    assert all(math.isfinite(frame["output"]["absmax"]) and frame["output"]["nan"] == 0 for frame in first["before"])


def test_a_step_that_is_done_otherwise_is_said_to_differ(tmp_path):
    train("accumulating", tmp_path)
    torch_parts = KINDS["accumulating"][0]

    def without_dropout():
        parts = torch_parts()
        for module in parts.model.modules():
            if hasattr(module, "dropout"):
                module.dropout = 0.0
        return parts

    before = KINDS["accumulating"]
    KINDS["accumulating"] = (without_dropout, *before[1:])
    try:
        found = again("accumulating", tmp_path)
    finally:
        KINDS["accumulating"] = before
    assert not found.exact
    assert f"from step {found.snapshot_step} on the loss is" in found.difference


def replayed(kind, folder, step):
    parts = KINDS[kind][0]()
    return sl.replay(folder, parts.model, parts.optimizer, lambda *given: step(parts, *given), samples=False)


def test_a_nan_that_does_not_come_back_is_a_difference(tmp_path):
    """A replay of a step that was NaN has shown nothing where it is finite."""
    train("poisoned", tmp_path, dump=False)

    def mended(parts, model, optimizer, batches):
        for batch in batches:
            batch["gain"] = torch.ones(())
        return parts.step(model, optimizer, batches)

    found = replayed("poisoned", tmp_path, mended)
    assert math.isnan(found.recorded[BAD]) and math.isfinite(found.losses[BAD])
    assert not found.exact
    assert f"from step {BAD} on the loss is {found.losses[BAD]!r} where nan was recorded" in found.difference


def test_where_no_loss_was_recorded_nothing_is_called_equal(tmp_path):
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def step(model, optimizer, batches):
        for batch in batches:
            loss = model(batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    lens = sl.attach(model, optimizer, tmp_path, blackbox=sl.BlackBox(snapshot_every=2))
    for _ in range(4):
        step(model, optimizer, [lens.batch(tokens())])
        lens.step()
    lens.dump()
    lens.close()
    found = sl.replay(tmp_path, model, optimizer, step, samples=False)
    assert not found.exact
    assert "no loss of these steps was recorded" in str(found)
