"""The example of training on several processes, started by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

import stabilitylens as sl

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not dist.is_gloo_available(), reason="needs gloo")

EXAMPLE = Path(__file__).parents[1] / "examples" / "04_fsdp2_torchrun.py"


def torchrun(script, folder):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr


def test_a_lens_that_is_never_closed_leaves_every_step(tmp_path):
    text = EXAMPLE.read_text().replace("with sl.attach(model, optimizer, folder, every=5) as lens:", "lens = sl.attach(model, optimizer, folder, every=8)\nif True:")
    (tmp_path / "unclosed.py").write_text(text)
    torchrun(tmp_path / "unclosed.py", tmp_path)
    assert list(sl.load(tmp_path)["loss"].steps) == list(range(1, 21))


def test_the_example_runs_under_torchrun(tmp_path):
    torchrun(EXAMPLE, tmp_path)
    recorded = sl.load(tmp_path)
    assert list(recorded["resid_rms"].steps) == [1, 5, 10, 15, 20]
    assert len(recorded["grad_norm"].steps) == 20 and np.isfinite(recorded["grad_norm"].values).all()
    assert recorded.header.coverage.parameters[0] == recorded.header.coverage.parameters[1]
    assert sorted(p.name.split(".")[0] for p in (tmp_path / "stabilitylens").iterdir()) == ["arrays", "events"]
