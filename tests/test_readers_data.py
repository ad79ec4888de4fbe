"""Real runs of other people, where they are at hand: the number of their points.

The table and the logs are read from the folder that STABILITYLENS_DATA names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("STABILITYLENS_DATA", "")) / "realruns"
pytestmark = pytest.mark.skipif(not (FOLDER / "catalog.jsonl").is_file(), reason="STABILITYLENS_DATA is not set")
#: of the runs, so many may be read otherwise than their table says
MISSED = 2


def _rows() -> list[dict[str, Any]]:
    return [row for row in map(json.loads, (FOLDER / "catalog.jsonl").read_text().splitlines()) if row.get("file")]


#: in a process of its own: there types are not checked at every call
CODE = """
import json, sys
from pathlib import Path
from stabilitylens.errors import BadInput
from stabilitylens.readers import read_all

def points(path):
    try:
        return [len(run["loss"]) if "loss" in run else 0 for run in read_all(path)]
    except BadInput:
        return [0]

json.dump([points(Path(path)) for path in json.load(sys.stdin)], sys.stdout)
"""


def _points(rows: list[dict[str, Any]]) -> list[list[int]]:
    paths = json.dumps([str(FOLDER / row["file"]) for row in rows])
    done = subprocess.run([sys.executable, "-c", CODE], input=paths, capture_output=True, text=True, check=True)
    found: list[list[int]] = json.loads(done.stdout)
    return found


def _fits(points: int, row: dict[str, Any]) -> bool:
    return any(abs(points - n) <= max(1, 0.02 * n) for n in [row["n_points"], *row.get("n_points_alt", [])])


def test_the_points_of_real_runs() -> None:
    rows = _rows()
    read = zip(rows, _points(rows), strict=True)
    missed = [row["id"] for row, points in read if not (_fits(max(points), row) or _fits(sum(points), row))]
    assert len(rows) >= 80 and len(missed) <= MISSED, missed
