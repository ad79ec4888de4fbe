"""Exported runs hold every value, and other readers, our own among them, get them back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import stabilitylens as sl
from stabilitylens import cli
from stabilitylens.errors import BadInput
from stabilitylens.run import Run, Series
from stabilitylens.writers import _exporter
from stabilitylens.writers._exporter import EXPORTERS, write_to
from tests import run_builders as runs

pandas = pytest.importorskip("pandas")


@pytest.fixture
def run() -> Run:
    made = runs.healthy()
    made.series["loss"].values[[7, 8, 9]] = np.nan, np.inf, -np.inf
    made.series["resid_rms/layer"].values[3, 2] = np.nan
    return made


def table_of(path: Path, to: str):
    return pandas.read_csv(path) if to == "csv" else pandas.read_parquet(path)


def test_the_formats_are_the_files_of_the_folder() -> None:
    assert EXPORTERS.names() == ["csv", "jsonl", "parquet"]


@pytest.mark.parametrize("to", ["csv", "parquet"])
@pytest.mark.parametrize("chunk", [7, 250_000])
def test_a_table_has_a_row_a_value(to: str, chunk: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if to == "parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(_exporter, "CHUNK", chunk)
    write_to(run, to, tmp_path / "run")
    table = table_of(tmp_path / "run", to)
    assert list(table.columns) == ["step", "series", "attention", "head", "kv_head", "layer", "value"]
    for name, series in run.series.items():
        rows = table[table.series == name]
        assert np.array_equal(rows.value.to_numpy().reshape(series.values.shape), series.values, equal_nan=True)
        assert np.array_equal(np.unique(rows.step), series.steps)
        assert all(rows[axis].isna().all() == (axis not in series.axes) for axis in ("attention", "head", "kv_head", "layer"))


def test_parquet_carries_the_header(run: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_to(run, "parquet", tmp_path / "run.parquet")
    header = json.loads(parquet.read_schema(tmp_path / "run.parquet").metadata[b"stabilitylens"])
    assert header["recipe"]["lr"] == 0.1 and header["anatomy"]["n_layers"] == 4


def test_json_lines_have_an_object_a_step(run: Run, tmp_path: Path) -> None:
    write_to(run, "jsonl", tmp_path / "run.jsonl")
    rows = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(runs.STEPS))
    assert [rows[i]["loss"] for i in (7, 8, 9)] == ["NaN", "Infinity", "-Infinity"]
    assert "resid_rms/layer" not in rows[1] and rows[30]["resid_rms/layer"][2] is None
    assert rows[10]["max_attn_logit/attention_head"] == run["max_attn_logit"].values[1].tolist()


@pytest.mark.parametrize("to", ["csv", "jsonl"])
def test_our_own_readers_read_it(to: str, run: Run, tmp_path: Path) -> None:
    write_to(run, to, tmp_path / f"run.{to}")
    back = sl.load(tmp_path / f"run.{to}")
    for name in ("loss", "grad_norm"):
        assert np.array_equal(back[name].steps, run[name].steps)
        assert np.allclose(back[name].values, run[name].values, rtol=1e-12, equal_nan=True)


def test_series_of_other_steps_and_an_empty_run(tmp_path: Path) -> None:
    sparse = Run("x", {"a": Series("a", np.array([2, 5]), np.array([1.0, 2.0])), "b": Series("b", np.array([5, 9]), np.array([3.0, 4.0]))})
    write_to(sparse, "jsonl", tmp_path / "x")
    assert [json.loads(line) for line in (tmp_path / "x").read_text().splitlines()] == [
        {"step": 2, "a": 1.0}, {"step": 5, "a": 2.0, "b": 3.0}, {"step": 9, "b": 4.0},
    ]
    for to in EXPORTERS.names():
        write_to(Run("empty", {}), to, tmp_path / to)
    assert (tmp_path / "csv").read_text() == "step,series,value\n" and (tmp_path / "jsonl").read_text() == ""


def test_a_failed_export_leaves_nothing_behind(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.parquet").write_text("before")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadInput, match=r"needs pyarrow: pip install 'stabilitylens\[arrow\]'"):
        write_to(run, "parquet", tmp_path / "run.parquet")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.parquet", "before")]


def call(*argv: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(list(argv))
    return int(left.value.code or 0)


def test_the_command_writes_a_file_or_to_standard_output(run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_to(run, "csv", tmp_path / "run.csv")
    assert call("export", str(tmp_path / "run.csv"), "--to", "jsonl", "-o", str(tmp_path / "run.jsonl")) == 0
    assert capfdbinary.readouterr().err.startswith(b"wrote ")
    assert call("export", str(tmp_path / "run.jsonl"), "--to", "jsonl") == 0
    lines = capfdbinary.readouterr().out.splitlines()
    assert len(lines) == runs.STEPS and json.loads(lines[0])["loss"] == pytest.approx(run["loss"].values[0])


@pytest.mark.parametrize("argv", [("missing", "--to", "csv"), ("run.csv", "--to", "csv", "-o", "."), ("run.csv", "--to", "csv", "-o", "no/such/x"), ("run.csv", "--to", "xlsx"), ("run.csv",)])
def test_what_cannot_be_exported_is_one_sentence(argv: tuple[str, ...], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_to(run, "csv", tmp_path / "run.csv")
    assert call("export", *argv) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and said.err.startswith("stabilitylens: ")
