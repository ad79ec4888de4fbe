"""The scripts for a GPU: their checks find what is wrong, stop in time, and a table that is cut short is kept."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import kernel_cases  # noqa: F401  Triton in its interpreter
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
if not (ROOT / "benchmarks" / "gpu_kernels.py").exists():
    pytest.skip("the benchmarks are out of reach", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from benchmarks import _gpu_checks, gpu_kernels  # noqa: E402

LIMIT = _gpu_checks.LIMITS[torch.float32]
CHECKS = {
    "rms": lambda: _gpu_checks._norm("cpu", 100, torch.float32, "rms"), "layer": lambda: _gpu_checks._norm("cpu", 100, torch.float32, "layer"),
    "add-rms": lambda: _gpu_checks._added("cpu", 100, torch.float32, "rms"), "add-layer": lambda: _gpu_checks._added("cpu", 100, torch.float32, "layer"),
    "dyt": lambda: _gpu_checks._squash("cpu", 100, torch.float32, "tanh"), "derf": lambda: _gpu_checks._squash("cpu", 100, torch.float32, "erf"),
    "qk": lambda: _gpu_checks._pair("cpu", 64, torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_a_right_kernel_passes_its_check_and_its_gradients_are_among_what_is_checked(name):
    torch.manual_seed(0)
    errors = CHECKS[name]()
    assert max(errors) < LIMIT
    assert len(errors) >= 3


@pytest.mark.parametrize("name", ["rms", "qk", "dyt"])
def test_a_wrong_gradient_is_found(name, monkeypatch):
    from stabilitylens.kernels._gpu import norm, squash_launch

    norm_backward, squash_backward = norm.backward, squash_launch.backward

    def wrong(*args):
        out = norm_backward(*args)
        out.dx.mul_(1.01)
        return out

    def wrong_squash(*args):
        dx, *rest = squash_backward(*args)
        return dx * 1.01, *rest

    monkeypatch.setattr(norm, "backward", wrong)
    monkeypatch.setattr(squash_launch, "backward", wrong_squash)
    assert max(CHECKS[name]()) > LIMIT


def test_checks_stop_when_their_time_is_up_and_name_what_they_left():
    wrong, left = _gpu_checks.checks("cpu", 0.0)
    assert not wrong and len(left) == len(set(left)) == len(_gpu_checks.planned("cpu"))
    assert left[0].startswith("rms d=4096") and any("qk-norm d=20000" in name for name in left)


def test_a_check_that_raises_is_wrong(monkeypatch):
    def plan(device):
        return [("one", lambda: [0.0], 1.0), ("two", lambda: [][0], 1.0), ("three", lambda: [2.0], 1.0)]

    monkeypatch.setattr(_gpu_checks, "planned", plan)
    wrong, left = _gpu_checks.checks("cpu", 60.0)
    assert [w.split(":")[0] for w in wrong] == ["two", "three"] and not left


def test_a_table_is_saved_row_by_row_and_a_part_that_fails_costs_no_other(tmp_path, monkeypatch, capsys):
    def breaks():
        yield {"kind": "forward", "name": "a", "d": 1, "share": 0.5}
        assert len(json.loads((tmp_path / "table.json").read_text())) == 1
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu_kernels, "parts", lambda bench: [("first", breaks()), ("second", iter([{"kind": "forward", "name": "b", "d": 1, "share": 0.5}]))])
    table = gpu_kernels.Table(tmp_path / "table.json")
    gpu_kernels.measure(table, None, time.monotonic() + 1000)
    assert [r["name"] for r in json.loads((tmp_path / "table.json").read_text())] == ["a", "b"]
    assert "first was left out: RuntimeError: out of memory" in capsys.readouterr().out
    gpu_kernels.measure(table, None, time.monotonic())
    assert len(table.rows) == 2 and "the time is up" in capsys.readouterr().out


def test_a_plot_without_matplotlib_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    gpu_kernels.plot([], tmp_path / "bandwidth.png")
    assert "matplotlib is not installed" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_what_has_a_target_is_timed_first():
    names = [name for name, _ in gpu_kernels.parts(gpu_kernels.Bench(1.0, torch.empty(0)))]
    assert names[:2] == ["d=4096", "attention"] and names.index("d=65536") < names.index("d=1024") < names.index("others at d=4096")


def test_without_triton_nothing_is_compiled_and_a_sentence_says_so():
    code = "import sys; sys.modules['triton'] = None; sys.argv = ['aot']; from benchmarks.aot import main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.strip().startswith("nothing can be compiled") and "Traceback" not in done.stderr
