"""The readers of text against real logs, read from the folder that STABILITYLENS_DATA names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("STABILITYLENS_DATA", "")) / "realruns"
pytestmark = pytest.mark.skipif(not (FOLDER / "catalog.jsonl").is_file(), reason="STABILITYLENS_DATA is not set")
_TEXT = ("text", "-log", "modded-nanogpt", "hf-console-dict", "nemo-tqdm", "deepspeed")


def _rows() -> list[dict]:
    if not (FOLDER / "catalog.jsonl").is_file():
        return []
    rows = map(json.loads, (FOLDER / "catalog.jsonl").read_text().splitlines())
    return [row for row in rows if row.get("file") and row["format"].endswith(_TEXT)]


_READ = """
import json, sys
from pathlib import Path
from stabilitylens.readers import read_all
for name in sys.argv[1:]:
    print(json.dumps([len(run["loss"]) for run in read_all(Path(name)) if "loss" in run]))
"""


@pytest.fixture(scope="module")
def points() -> dict[str, list[int]]:
    """Points of the runs of each file, read in a process without the type checks of the tests, which cost minutes."""
    names = [row["file"] for row in _rows()]
    done = subprocess.run([sys.executable, "-c", _READ, *(str(FOLDER / name) for name in names)], capture_output=True, text=True, check=True)
    return dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["id"])
def test_the_points_are_those_of_the_catalogue(row: dict, points: dict[str, list[int]]) -> None:
    found, wanted = points[row["file"]], [row["n_points"], *row.get("n_points_alt", [])]
    assert any(abs(n - m) <= max(1, 0.02 * m) for n in (max(found), sum(found)) for m in wanted)


def test_the_catalogue_has_texts() -> None:
    assert len(_rows()) >= 40
