"""Real training that is killed, and a spike of one step between samples: nothing that was handed over is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from training import Decoder, loss_of, tokens, update

import stabilitylens as sl

TRAINING = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from training import *
torch.manual_seed(0)
model = Decoder(depth=2)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
lens = sl.attach(model, optimizer, sys.argv[1], every=5)
step = 0
while True:
    loss = loss_of(model, tokens())
    update(loss, optimizer, lens)
    step += 1
    print(step, loss.item(), flush=True)
"""


@pytest.mark.parametrize("after", [1, 12, 37])
def test_every_step_that_returned_survives_kill_9(after, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", TRAINING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    printed = [process.stdout.readline().split() for _ in range(after)]
    process.send_signal(signal.SIGKILL)
    printed += [line.split() for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    assert process.wait() == -signal.SIGKILL
    run = sl.load(tmp_path)
    count = len(printed)
    assert run["loss"].steps[:count].tolist() == [int(step) for step, _ in printed]
    assert run["loss"].values[:count] == pytest.approx([float(loss) for _, loss in printed], rel=1e-6)
    assert run["grad_norm"].steps[:count].tolist() == run["loss"].steps[:count].tolist()
    sampled = [s for s in range(1, count + 1) if s == 1 or s % 5 == 0]
    assert run["max_attn_logit"].steps[: len(sampled)].tolist() == sampled
    assert np.isfinite(run["resid_rms"].values).all()
    assert sl.postmortem(tmp_path).coverage


def test_a_spike_of_one_step_between_two_samples_is_recorded_and_found(tmp_path):
    torch.manual_seed(0)
    model = Decoder(d=8, heads=2, depth=1, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, tmp_path, every=10) as lens:
        for step in range(1, 1101):
            loss = loss_of(model, tokens(2, 8)) * (8 if step == 1003 else 1)
            update(loss, optimizer, lens, ready=False)
        assert not lens.guard.failures
    run = sl.load(tmp_path)
    assert run["loss"].steps.tolist() == list(range(1, 1101))
    assert int(run["loss"].steps[np.argmax(run["loss"].values)]) == 1003
    assert 1003 not in run["resid_rms"].steps
    found = [i for i in sl.postmortem(tmp_path).incidents if i.metric == "loss" and i.kind != "plateau"]
    assert [(i.kind, i.peak_step, i.width) for i in found] == [("outlier", 1003, 1)]
