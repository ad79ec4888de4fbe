"""Large JSON: the same numbers as small, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stabilitylens import load
from stabilitylens.errors import BadInput
from stabilitylens.readers import _json, _json_large

N = 15_000
LOSS = [round(3 + 1 / (1 + i), 6) for i in range(N)]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json, "SMALL", 1000)
    monkeypatch.setattr(_json, "LARGEST", 20_000)
    monkeypatch.setattr(_json_large, "AT_ONCE", 10_000)
    monkeypatch.setattr(_json_large, "WINDOW", 3000)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1e-300, 7])
def test_columns_are_read_past_python_s_lists(odd: float, small_limits: None, tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"name": "a [1, 2]", "loss": [*LOSS[:-1], odd], "lr": [1e-3] * N, "step": list(range(0, 2 * N, 2))}))
    run = load(path)
    np.testing.assert_array_equal(run["loss"].values, [*LOSS[:-1], odd])
    assert run["loss"].steps.tolist() == list(range(0, 2 * N, 2)) and len(run["lr"]) == N


def test_columns_with_holes_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json, "SMALL", 1000)
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"step": list(range(N)), "loss": [None if i % 7 == 3 else x for i, x in enumerate(LOSS)], "val_loss": [4.5]}))
    run = load(path)
    kept = [i for i in range(N) if i % 7 != 3]
    assert run["loss"].steps.tolist() == kept and run["loss"].values.tolist() == [LOSS[i] for i in kept]


@pytest.mark.parametrize("cut", [0, 500])
@pytest.mark.parametrize("key", ["log_history", "rows"])
def test_records_are_streamed(key: str, cut: int, small_limits: None, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    text = json.dumps({"epoch": 1.0, key: [{"step": i, "loss": x, "of": {"a": "]}"}} for i, x in enumerate(LOSS[:5000])], "global_step": 7})
    path.write_text(text[:len(text) - cut])
    run = load(path)
    kept = len(run["loss"])
    assert run.format == ("trainer_state" if key == "log_history" else "json_document")
    assert kept == 5000 if not cut else 4980 < kept < 5000
    assert run["loss"].values.tolist() == LOSS[:kept] and run["loss"].steps.tolist() == list(range(kept))
    assert [("large" in note, "damaged" in note) for note in run.notes] == [(True, False), (False, True)][:1 + bool(cut)]


def test_what_is_neither_is_one_sentence(small_limits: None, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"loss": {f"k{i}": [1, 2] for i in range(9000)}}))
    with pytest.raises(BadInput, match="that is no list of records or numbers; give the history as JSON lines$"):
        _json.document(path, [])


def test_a_line_of_numbers_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "line.json"
    path.write_bytes(b'{"loss":[' + b"1.5," * 2_500_000 + b"1]}")
    code = "import resource, sys; from stabilitylens import load; peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = peak(); print(len(load(sys.argv[1])['loss']), peak() - before)"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    points, memory = map(int, done.stdout.split())
    assert points == 2_500_001 and memory < 100_000
