"""Nothing that a file holds makes a reader fail otherwise than with one sentence, or take much memory."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stabilitylens import load
from stabilitylens.errors import BadInput
from stabilitylens.readers import read_all
from stabilitylens.run import Run
from tests.log_files import FORMATS, LOSSES, ROWS, STEPS

FILES = [name for name in FORMATS if name not in ("mlflow", "wandb_folder")]
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def survives(path: Path) -> list[Run]:
    """The runs, each well formed; none where the reader says in one sentence that there are none."""
    try:
        runs = read_all(path)
    except BadInput as error:
        assert "\n" not in str(error) and ";" in str(error) and str(path) in str(error)
        return []
    for run in runs:
        for series in run.values():
            assert series.values.dtype == np.float64 and series.steps.dtype == np.int64
            assert len(series.steps) == len(series.values) > 0 and (np.diff(series.steps) > 0).all()
    return runs


def sentence(path: Path) -> str:
    with pytest.raises(BadInput) as error:
        read_all(path)
    assert "\n" not in str(error.value) and ";" in str(error.value)
    return str(error.value)


@FUZZ
@given(data=st.binary(max_size=2000), start=st.sampled_from([b"", b"{", b"[", b"step,loss\n", b"\x1f\x8b", b"(\xb5/\xfd", b":W&B\xe1\xbe\0", b"\xff\xfe"]))
def test_any_bytes(data: bytes, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(start + data)
    survives(path)


@FUZZ
@given(words=st.lists(st.sampled_from([*"0123456789.eE+-,;:|={}[]()\"' \t\r\n\0/%", "loss", "step", "nan", "val", "epoch", "1e308"]), max_size=400))
def test_any_text(words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("".join(words), encoding="utf-8")
    survives(path)


@pytest.mark.parametrize("name", FILES)
@settings(FUZZ, max_examples=15)
@given(edits=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["flip", "cut", "drop", "twice"]), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6))
def test_a_file_of_each_format_that_was_damaged(name: str, edits: list[tuple[float, str, bytes]], tmp_path: Path) -> None:
    path = tmp_path / FORMATS[name][0]
    FORMATS[name][2](path)
    data = path.read_bytes()
    for where, kind, some in edits:
        at = int(where * len(data))
        data = {
            "flip": data[:at] + some + data[at + len(some):], "cut": data[:at], "drop": data[:at] + data[at + 20:],
            "twice": data[:at] + data[at:at + 200] + data[at:],
        }[kind]
    path.write_bytes(data)
    survives(path)


@given(value=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["1", "nan", "x", "1/2"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["loss", "step", "1", "2", "history", "train"]), inner, max_size=4),
    max_leaves=30,
))
@FUZZ
def test_any_json(value: object, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(value))
    survives(path)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"log_history": [', "[[{"])
def test_json_that_is_nested_a_million_deep(opening: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text(opening * 1_000_000)
    sentence(path)
    path.write_text('{"step": 1, "loss": 2.0}\n' + opening * 1_000_000 + '\n{"step": 2, "loss": 1.0}\n')
    assert len(load(path)["loss"]) == 2


def test_a_line_of_a_hundred_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    good = "".join(json.dumps(row) + "\n" for row in ROWS[:20])
    with path.open("w") as file:
        file.write(good + '{"step": 205, "note": "')
        for _ in range(100):
            file.write("x" * (1 << 20))
        file.write('"}\n' + "".join(json.dumps(row) + "\n" for row in ROWS[20:]))
    run = load(path)
    assert run["loss"].steps.tolist() == STEPS and any("skipped" in note for note in run.notes)


def test_numbers_at_the_edge(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {i}, "loss": {x}}}\n' for i, x in enumerate(["1e308", "1e999", "-1e308", "9" * 400, "9" * 5000, "5e-324", "NaN", "-Infinity", "2.0"])))
    run = load(path)
    assert len(run["loss"]) == 8 and run["loss"].values[0] == 1e308 and run["loss"].values[1] == np.inf
    assert any("1 lines" in note for note in run.notes)


def test_nuls_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    content = "".join(json.dumps(row) + "\n" for row in ROWS)
    for data in (b"\xef\xbb\xbf" + content.encode(), content.encode("utf-16"), content.encode().replace(b"\n", b"\n" + bytes(50))):
        path.write_bytes(data)
        assert load(path)["loss"].values.tolist() == LOSSES
    path.write_bytes(b"\xef\xbb\xbfstep,loss\r\n" + b"".join(f"{s},{x}\r\n".encode() for s, x in zip(STEPS, LOSSES, strict=True)))
    assert load(path)["loss"].steps.tolist() == STEPS


def test_metrics_json_that_is_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    FORMATS["json_lines"][2](path)
    assert load(path).format == "json_lines"


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab12\nsize 123456\n")
    assert "is a Git LFS pointer" in sentence(path) and "git lfs pull" in sentence(path)


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was opened",))


@pytest.mark.parametrize(("content", "what"), [
    (b"", "empty file"), (pickle.dumps(Trap(), protocol=4), "pickle"), (b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG"), (b"%PDF-1.7\n", "PDF"),
    (b"lr: 0.1\nbatch_size: 8\nmodel: gpt\n", "settings"), (b'{"lr": 0.1, "betas": [0.9, 0.95], "layers": 12}', "JSON"),
    (b"<!DOCTYPE html><html></html>", "HTML"), (bytes(range(256)) * 20, "binary"), (b"hello\n", "text file"),
])
def test_nothing_to_read(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert what in sentence(path)


def test_weights_and_archives_are_not_opened(tmp_path: Path) -> None:
    for name, what in (("archive/data.pkl", "torch.save"), ("log.txt", "zip archive")):
        path = tmp_path / "file.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, pickle.dumps(Trap()))
        assert what in sentence(path)


def test_a_large_log_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    block = "".join(f'{{"step": %d, "loss": 2.{i % 1000:03d}, "text": "' + 900 * "x" + '"}\n' for i in range(1000))
    with path.open("w") as file:
        for i in range(100):
            file.write(block % tuple(range(1000 * i, 1000 * i + 1000)))
    code = (
        "import resource, sys; from pathlib import Path; from stabilitylens.readers import read_all\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"(run,) = read_all(Path({str(path)!r})); assert len(run['loss']) == 100_000\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert path.stat().st_size > 9e7 and int(done.stdout) * (1024 if sys.platform != "darwin" else 1) < 5e7
