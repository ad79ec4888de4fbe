"""Half an incident never bears an incident's name; a damaged or foreign one is a sentence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from blackbox_runs import KINDS, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.evidence import INCIDENTS, Evidence
from stabilitylens.hooks.blackbox.manifest import _digest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train("accumulating", folder)
    return folder / INCIDENTS / "step_20"


@pytest.fixture
def incident(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "step_20"))


def replay(folder, kind="accumulating", **change):
    parts = KINDS[kind][0]()
    return sl.replay(folder, **({"model": parts.model, "optimizer": parts.optimizer, "step_fn": parts.step} | change))


@settings(max_examples=40)
@given(data=st.data())
def test_any_changed_byte_of_any_file_is_found(whole, data):
    name = data.draw(st.sampled_from(["manifest.json", "rank_0/steps.pt", "rank_0/snapshot.pt"]))
    path = whole / name
    before = path.read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    after = bytes([before[at] ^ data.draw(st.integers(1, 255))])
    changed = before[:at] + after + before[at + 1 :]
    try:
        path.write_bytes(changed)
        try:
            same = json.loads(changed) == json.loads(before) if name == "manifest.json" else False
        except ValueError:
            same = False
        if same:  # white space
            Evidence(whole)
        else:
            with pytest.raises(BadInput, match=path.name):
                Evidence(whole)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["manifest.json", "rank_0/steps.pt", "rank_0/snapshot.pt"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_file_that_is_cut(incident, name, share):
    content = (incident / name).read_bytes()
    (incident / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(BadInput, match="nothing of the incident is used"):
        replay(incident)


def test_a_file_that_is_gone(incident):
    (incident / "rank_0" / "snapshot.pt").unlink()
    with pytest.raises(BadInput, match="snapshot.pt can't be read"):
        replay(incident)


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"format": "other"}', "\x00", "[" * 100_000])
def test_a_foreign_manifest(content, tmp_path):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(BadInput, match="manifest"):
        replay(tmp_path)


def test_a_manifest_of_a_newer_version(incident):
    path = incident / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2', 1))
    with pytest.raises(BadInput, match="has version 2, and this program reads 1"):
        replay(incident)


STEPS_FILE = {"bytes": 3, "sha256": "0"}


@pytest.mark.parametrize(
    "forged",
    [
        {"kinds": 3}, {"kinds": [1]}, {"steps": 5}, {"steps": [1]}, {"reason": None}, {"created": "now"}, {"world": 0}, {"left_out": []},
        {"setting": None}, {"step": "ten"}, {"step": None}, {"step": -3}, {"step": 3}, {"step": True}, {"snapshot_step": 1.5},
        {"files": []}, {"files": {}}, {"files": {"rank_0/steps.pt": 3}}, {"files": {"rank_0/steps.pt": {}}},
        {"files": {"rank_0/steps.pt": STEPS_FILE, "../outside": STEPS_FILE}}, {"files": {"/etc/steps.pt": STEPS_FILE}},
    ],
    ids=str,
)  # fmt: skip
def test_a_forged_manifest_with_a_right_checksum(forged, incident):
    path = incident / "manifest.json"
    body = json.loads(path.read_text()) | forged
    del body["sha256"]
    path.write_text(json.dumps(body | {"sha256": _digest(body)}))
    with pytest.raises(BadInput, match=f"states {'snapshot_step' if forged == {'step': 3} else next(iter(forged))} as no dump writes it"):
        replay(incident)


def test_a_pickle_that_is_no_plain_data_is_not_loaded(incident, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    from dataclasses import replace

    from stabilitylens.hooks.blackbox.manifest import read_manifest, sha256

    path = incident / "rank_0" / "steps.pt"
    torch.save({20: Evil()}, path)
    manifest = read_manifest(incident)
    files = manifest.files | {"rank_0/steps.pt": {"sha256": sha256(path), "bytes": path.stat().st_size}}
    (incident / "manifest.json").write_text(replace(manifest, files=files).to_json())
    with pytest.raises(BadInput, match="can't be loaded as plain data"):
        replay(incident)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("wrong", ["", None, 3, "nowhere/at/all"])
def test_a_folder_that_is_none(wrong):
    with pytest.raises(BadInput, match="folder"):
        replay(wrong)


def test_a_model_that_lacks_something(whole):
    model = KINDS["poisoned"][0]().model
    with pytest.raises(BadInput, match="the model has seen, which the recorded one has not"):
        replay(whole, model=model, optimizer=torch.optim.SGD(model.parameters()))


def test_a_model_of_another_shape(whole):
    from training import Decoder

    model = Decoder(d=16)
    with pytest.raises(BadInput, match=r"has shape \(64, 16\), and \(64, 32\) in the recorded model"):
        replay(whole, model=model, optimizer=torch.optim.AdamW(model.parameters()))


def test_an_optimizer_with_other_groups(whole):
    model = KINDS["accumulating"][0]().model
    groups = [{"params": model.blocks.parameters()}, {"params": model.head.parameters()}]
    with pytest.raises(BadInput, match="parameter groups"):
        replay(whole, model=model, optimizer=torch.optim.AdamW(groups))


def test_a_step_that_is_not_given_at_all(whole):
    parts = KINDS["accumulating"][0]()
    for function in (sl.replay, sl.counterfactuals):
        with pytest.raises(BadInput, match="needs step_fn"):
            function(whole, parts.model, parts.optimizer)


@pytest.mark.parametrize(("change", "words"), [
    ({"step_fn": None}, "needs step_fn"),
    ({"step_fn": lambda model, optimizer, batches: "loss"}, "returned no loss"),
    ({"step_fn": lambda model, optimizer, batches: torch.zeros(3)}, "returned no loss"),
    ({"model": "gpt"}, "needs a torch.nn.Module"),
    ({"optimizer": None}, "needs a torch.optim.Optimizer"),
    ({"optimizer": []}, "needs a torch.optim.Optimizer"),
])  # fmt: skip
def test_what_is_missing_for_a_replay(change, words, whole):
    with pytest.raises(BadInput, match=words):
        replay(whole, **change)


def test_no_snapshot(tmp_path):
    train("accumulating", tmp_path, box=True)
    with pytest.raises(BadInput, match="no snapshot was kept before step 20.*snapshot_every"):
        replay(tmp_path)


def test_a_model_that_is_still_observed(whole, tmp_path):
    parts = KINDS["accumulating"][0]()
    with sl.attach(parts.model, parts.optimizer, tmp_path):
        with pytest.raises(BadInput, match="close"):
            replay(whole, model=parts.model, optimizer=parts.optimizer)


PROGRAM = """
    import os, sys, torch
    from torch import nn
    import stabilitylens as sl
    model = nn.Sequential(nn.Linear(1500, 1500), nn.Linear(1500, 1500))
    optimizer = torch.optim.Adam(model.parameters())
    lens = sl.attach(model, optimizer, sys.argv[1], blackbox=sl.BlackBox(snapshot_every=1))
    loss = model(torch.ones(1, 1500)).sum()
    loss.backward(); optimizer.step(); lens.step(loss)
    print("ready", flush=True)
    while True:
        lens.dump()
"""


@pytest.mark.slow
def test_a_process_killed_while_it_dumps_leaves_no_half_incident(tmp_path):
    """Killed at two moments; whatever bears an incident's name is whole."""
    half = 0
    for i in range(2):
        run = tmp_path / str(i)
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), run]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert process.stdout.readline() == "ready\n"
        incidents = run / INCIDENTS
        deadline = time.monotonic() + 60
        while not any(incidents.glob(".step_1.partial/rank_0/snapshot.pt")) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02 * i)
        process.send_signal(signal.SIGKILL)
        process.wait()
        half += len(list(incidents.glob(".*")))
        for folder in incidents.glob("step_*"):
            assert Evidence(folder).snapshot().step == 1
        model = nn.Linear(2, 2)
        sl.attach(model, torch.optim.SGD(model.parameters()), run, blackbox=True).close()
        assert not list(incidents.glob(".*")), "what the dead process left behind is still there"
    assert half > 0, "no process was killed while it wrote"


def test_a_run_in_which_nothing_was_dumped_is_said(tmp_path):
    train("accumulating", tmp_path, steps=3, dump=False)
    with pytest.raises(BadInput, match="nothing was dumped in the run"):
        replay(tmp_path)
