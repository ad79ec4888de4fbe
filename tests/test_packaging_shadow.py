"""A run's folder is called as the package is: where the package is installed, Python finds the package and not the folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stabilitylens

PACKAGE = Path(stabilitylens.__file__).parent
HOOKS = PACKAGE.parent / "hooks"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package laid out as a wheel lays it out."""
    skip = shutil.ignore_patterns("__pycache__")
    lib = tmp_path / "lib"
    shutil.copytree(PACKAGE, lib / "stabilitylens", ignore=skip)
    if HOOKS.is_dir():
        shutil.copytree(HOOKS, lib / "stabilitylens" / "hooks", ignore=skip)
    return lib


@pytest.mark.parametrize("how", [["-c", "import stabilitylens; print(stabilitylens.__file__)"], ["-m", "stabilitylens", "--help"]])
def test_python_started_inside_a_runs_folder_finds_the_package(how: list[str], installed: Path, tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    (run / "stabilitylens").mkdir()
    (run / "stabilitylens" / "arrays.0.sl").touch()
    out = subprocess.run([sys.executable, *how], cwd=run, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert str(installed) in out.stdout or "Usage" in out.stdout
