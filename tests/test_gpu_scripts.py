"""The scripts for the day a GPU is at hand: they stop in one sentence where something is missing, before anything runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


def run(script: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.run(["bash", "-c", script], cwd=cwd, env={"PATH": path} | environment, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["gpu.sh", "gpu_kernels.sh"])
def test_without_a_gpu_it_is_one_sentence_and_no_folder(name: str, tmp_path: Path) -> None:
    done = run(f"bash {ROOT / 'benchmarks' / name} {tmp_path / 'out'}", tmp_path)
    assert done.returncode == 1 and done.stderr == "torch sees no GPU here: run this on a machine with one\n"
    assert not (tmp_path / "out").exists()


def ready(needed: str) -> str:
    """The preparation with a GPU that is pretended."""
    text = (ROOT / "benchmarks" / "gpu_ready.sh").read_text().replace("torch.cuda.is_available()", "True")
    return f"set -euo pipefail\nset -- {needed}\n{text}\npython -c 'import stabilitylens.hooks'"


def test_with_one_the_package_can_be_imported() -> None:
    assert run(ready("triton"), ROOT).returncode == 0


def test_what_is_missing_is_named() -> None:
    done = run(ready("no_such_package"), ROOT)
    assert done.returncode == 1 and done.stderr.startswith("no_such_package can't be imported: pip install")


def test_a_source_folder_without_an_installation_says_what_to_do() -> None:
    """The folder hooks is stabilitylens.hooks by installation only."""
    code = (
        "import sys\n"
        "sys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in repr(finder).lower()]\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import stabilitylens\n"
        "stabilitylens.attach\n"
    )
    done = run(f"{sys.executable} - <<'PY'\n{code}PY", ROOT)
    assert done.returncode == 1 and "run pip install -e . in it" in done.stderr.splitlines()[-1]
