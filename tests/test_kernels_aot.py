"""A few kernels compiled for GPUs that are not there: none spills, none needs more than its baseline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(not (ROOT / "benchmarks" / "aot.py").exists(), reason="the benchmarks are out of reach")
@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings its assemblers for Linux only")
def test_a_diagonal_of_the_kernels_compiles_without_spills():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", "benchmarks.aot", "--diagonal"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 with complaints" in done.stdout
