"""Runs handed to W&B and MLflow: what their clients are told, and, where they are installed, what they keep of it."""

from __future__ import annotations

import contextlib
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stabilitylens.cli import main
from stabilitylens.readers import read
from stabilitylens.writers._tracker import TRACKERS, curves, rows
from tests import run_builders as runs
from tests.test_dashboard import record


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    run = runs.healthy()
    run.series["loss"].values[7] = math.nan
    record(tmp_path / "gpt", run, until=60).close()
    return tmp_path / "gpt"


def code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["export", *arguments])
    return int(left.value.code or 0)


def test_curves_have_their_tensorboard_tags(recording: Path) -> None:
    found = curves(read(recording))
    assert {"loss/train", "loss/train_max", "grad_norm/global", "max_attn_logit/max", "max_attn_logit/layer_2"} <= set(found)
    told = dict(rows(read(recording)))
    assert list(told) == list(range(60)) and math.isnan(told[7]["loss/train"])
    assert "max_attn_logit/max" in told[10] and "max_attn_logit/max" not in told[11]


@contextlib.contextmanager
def as_context(value: Any) -> Any:
    yield value


def test_what_the_clients_are_told(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, list[Any]] = {"wandb": [], "mlflow": [], "params": []}
    target = SimpleNamespace(log=lambda row, step: told["wandb"].append((step, row)), url="there", dir="")
    wandb = ModuleType("wandb")
    wandb.init = lambda **options: told["params"].append(options["config"]) or as_context(target)  # type: ignore[attr-defined]
    mlflow, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    entities.Metric = lambda *point: point  # type: ignore[attr-defined]
    mlflow.MlflowClient = lambda: SimpleNamespace(log_batch=lambda run, metrics: told["mlflow"].append(metrics))  # type: ignore[attr-defined]
    info = SimpleNamespace(run_id="1", artifact_uri="there/artifacts")
    mlflow.start_run = lambda run_name: as_context(SimpleNamespace(info=info))  # type: ignore[attr-defined]
    mlflow.log_params = told["params"].append  # type: ignore[attr-defined]
    for module in (wandb, mlflow, entities):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for to in TRACKERS.names():
        assert code_of(str(recording), "--to", to) == 0
    assert [step for step, _ in told["wandb"]] == list(range(60))
    assert all(len(some) <= 1000 for some in told["mlflow"])
    points = {(tag, step): value for some in told["mlflow"] for tag, value, _, step in some}
    for step, row in told["wandb"]:
        for tag, value in row.items():
            np.testing.assert_equal(points.pop((tag, step)), value)
    assert not points and all(p["optimizer"] == "AdamW" and p["n_layers"] == 4 for p in told["params"])


def test_what_is_lacking_or_senseless_is_said(recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for to in TRACKERS.names():
        monkeypatch.setitem(sys.modules, to, None)
        assert code_of(str(recording), "--to", to) == 2 and "pip install" in capsys.readouterr().err
        assert code_of(str(recording), "--to", to, "-o", "x") == 2 and "leave out -o" in capsys.readouterr().err


def test_an_offline_run_of_wandb_holds_it(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="W&B's client is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(recording.parent))
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert code_of(str(recording), "--to", "wandb") == 0
    found = read(next((recording.parent / "wandb").glob("offline-run-*")))
    np.testing.assert_allclose(found["loss"].values, read(recording)["loss"].values, rtol=1e-6)


def test_a_store_of_mlflow_holds_it(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="MLflow's client is not installed")
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((recording.parent / "mlruns").as_uri())
    assert code_of(str(recording), "--to", "mlflow") == 0
    found = read(next((recording.parent / "mlruns").glob("*/*/metrics")).parent)
    np.testing.assert_allclose(found["loss"].values, read(recording)["loss"].values, rtol=1e-6)
