"""A dumped incident is run again in a new process, to the bit."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from blackbox_runs import BAD, KINDS, STEPS, again, train

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Each kind trained here, its losses, and what another process finds when it runs the newest incident again."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    losses = {kind: train(kind, folders[kind], dump=kind != "poisoned") for kind in KINDS}
    given = json.dumps({kind: str(folder) for kind, folder in folders.items()})
    done = subprocess.run([sys.executable, "-W", "ignore", HERE / "blackbox_runs.py", given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {kind: (losses[kind], found) for kind, found in json.loads(done.stdout).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_is_equal_to_the_bit_in_a_new_process(kind, runs):
    losses, found = runs[kind]
    last = BAD if kind == "poisoned" else STEPS
    assert found["step"] == last
    assert found["exact"], found["difference"]
    assert list(found["losses"]) == [str(s) for s in range(found["snapshot_step"], last + 1)]
    assert found["snapshot_step"] <= last - 4
    for step, loss in found["losses"].items():
        mine = losses[int(step) - 1]
        assert loss == mine or math.isnan(loss) and math.isnan(mine), step


def test_the_scaler_moved_in_between(runs):
    losses, found = runs["scaling"]
    assert len(set(found["losses"].values())) == len(found["losses"])


def test_the_first_module_that_goes_wrong_is_named(runs):
    _, found = runs["poisoned"]
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
