"""Each format on a small log of our own making: sniffed by content, every point, our names."""

from __future__ import annotations

import bz2
import csv
import gzip
import importlib.metadata
import io
import lzma
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stabilitylens import load, postmortem, readers
from stabilitylens.errors import BadInput
from stabilitylens.explain import explain
from stabilitylens.readers import READERS, _reader, read_all
from stabilitylens.registry import Registry
from tests import log_files
from tests.log_files import FORMATS, LOSSES, NORMS, ROWS, STEPS


def write(name: str, folder: Path, renamed: str | None = None) -> Path:
    file, _, make = FORMATS[name]
    path = folder / (renamed or file)
    make(path)
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_every_point_under_our_names(name: str, tmp_path: Path) -> None:
    run = load(write(name, tmp_path))
    assert run.format == FORMATS[name][1] and run.notes == []
    assert run.loss_key is not None and run.loss_key.endswith("loss")
    assert run["loss"].steps.tolist() == STEPS == run["grad_norm"].steps.tolist()
    exact = 1e-6 if name == "events" else 0
    np.testing.assert_allclose(run["loss"].values, LOSSES, rtol=exact, atol=0)
    np.testing.assert_allclose(run["grad_norm"].values, NORMS, rtol=exact, atol=0)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("mlflow", "wandb_folder")])
def test_a_file_is_known_by_its_content_not_its_name(name: str, tmp_path: Path) -> None:
    assert load(write(name, tmp_path, "pickle.bin")).format == FORMATS[name][1]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("name", ["trainer_state", "json_lines", "csv", "events"])
def test_compressed(name: str, pack, tmp_path: Path) -> None:
    path = write(name, tmp_path)
    path.write_bytes(pack(path.read_bytes()))
    run = load(path)
    assert run["loss"].steps.tolist() == STEPS and run.path == str(path)


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_takes_long_says_so_on_a_terminal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr("stabilitylens.readers._progress.PATIENCE", 0.0)
    quick = _reader.ranked

    def slow(path: Path) -> Iterator[tuple[float, readers.Reader]]:
        for _ in range(1000):
            time.sleep(0.01 * (path.name not in shown.getvalue()))
        return quick(path)

    monkeypatch.setattr(readers, "ranked", slow)
    path = write(name, tmp_path)
    assert "loss" in load(path) and path.name in shown.getvalue()
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_zstandard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    FORMATS["json_lines"][2](tmp_path / "log.jsonl")
    path = tmp_path / "log.jsonl.zst"
    half = (tmp_path / "log.jsonl").read_bytes()
    path.write_bytes(zstandard.compress(half[:500]) + zstandard.compress(half[500:]))
    assert load(path)["loss"].steps.tolist() == STEPS
    for module in ("zstandard", "compression"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadInput, match=r"zstd, which is not installed; pip install 'stabilitylens\[zstd\]'"):
        load(path)


@pytest.mark.parametrize("name", [member.name for member in readers.READERS])
def test_explain_prints_a_reader_s_page(name: str) -> None:
    assert readers.READERS[name].summary in explain(name)


def test_a_compressed_file_that_is_cut_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress("".join(f'{{"step": {i}, "loss": {i}.5}}\n' for i in range(100_000)).encode())[:-5000])
    assert 1000 < len(load(path)["loss"]) < 100_000
    path.write_bytes(b"\x1f\x8b" + bytes(100))
    with pytest.raises(BadInput, match="damaged from its beginning"):
        load(path)


def test_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write("json_lines", tmp_path).read_bytes()
    for content in (data, gzip.compress(data)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        run = load("-")
        assert run["loss"].steps.tolist() == STEPS and run.path == "standard input"


def test_the_latest_checkpoint_of_a_tree_holds_the_history(tmp_path: Path) -> None:
    for step, cut in ((90, 9), (400, 40), (200, 20)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        rows = ROWS[:cut]
        (folder / "trainer_state.json").write_text(f'{{"global_step": {step}, "log_history": {rows}}}'.replace("'", '"'))
    assert len(load(tmp_path)["loss"]) == 40


def test_a_training_without_logged_steps_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [{"step": 78, "train_loss": 9.0, "train_runtime": 5.0}]}')
    with pytest.raises(BadInput, match="only the summary"):
        load(path)


def test_several_runs_in_a_wandb_export(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    names = [f"{run} - train/loss{end}" for run in ("calm-1", "dead - 2") for end in ("", "__MIN", "__MAX")]
    lines = [f"{s},{x},{x},{x}," + (f"{x + 1},{x},{x}" if s < 200 else ",,") for s, x in zip(STEPS, LOSSES, strict=True)]
    header = io.StringIO()
    csv.writer(header, quoting=csv.QUOTE_ALL).writerow(["Step", *names])
    path.write_text(header.getvalue() + "\n".join(lines))
    first, second = read_all(path)
    assert first.path.endswith("#calm-1") and second.path.endswith("#dead - 2") and first.loss_key == "train/loss"
    assert len(first["loss"]) == 40 and second["loss"].values.tolist() == [x + 1 for s, x in zip(STEPS, LOSSES, strict=True) if s < 200]


def test_runs_in_a_long_table_are_told_apart_by_their_column(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_text("run_id,key,value,step\n" + "".join(f"{r},train_loss,{x},{s}\n" for s, x in zip(STEPS, LOSSES, strict=True) for r in "ab"))
    assert [(run.path[-2:], len(run["loss"])) for run in read_all(path)] == [("#a", 40), ("#b", 40)]
    with pytest.raises(BadInput, match=r"holds 2 runs \(a, b\)"):
        load(path)


def test_a_type_column_splits_training_from_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "loss.csv"
    path.write_text("epoch,type,loss\n" + "".join(f"{i},train,{3 / i}\n{i},validation,{4 / i}\n" for i in range(1, 20)))
    run = load(path)
    assert run["loss"].values.tolist() == [3 / i for i in range(1, 20)]
    assert run["validation/loss"].values.tolist() == [4 / i for i in range(1, 20)]


@pytest.mark.parametrize(("content", "steps"), [
    ("Wall time,Step,Value\n" + "".join(f"{1.7e9 + s},{s},{x}\n" for s, x in zip(STEPS, LOSSES, strict=True)), STEPS),
    ("".join(f"{s} \t{x}\n" for s, x in zip(STEPS, LOSSES, strict=True)), STEPS),
    ("".join(f"{x}\n" for x in LOSSES), list(range(40))),
    ("step;loss\n" + "".join(f"{s};{x}\n".replace(".", ",") for s, x in zip(STEPS, LOSSES, strict=True)), STEPS),
])
def test_bare_tables(content: str, steps: list[int], tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_text(content)
    run = load(path)
    assert run["loss"].values.tolist() == LOSSES and run["loss"].steps.tolist() == steps


@pytest.mark.parametrize("purge", [False, True])
def test_event_files_of_a_run_that_was_resumed(purge: bool, tmp_path: Path) -> None:
    log_files.events(tmp_path / "events.out.tfevents.1", ROWS[:30])
    log_files.events(tmp_path / "events.out.tfevents.2", ROWS[20:], start=205 if purge else None)
    run = load(tmp_path)
    assert run["loss"].steps.tolist() == STEPS
    assert [event.kind for event in run.events] == ["resume"] and run.events[0].step == (205 if purge else 210)
    (lost,) = run.superseded
    assert lost["loss"].steps.tolist() == STEPS[20:30]


def test_event_files_of_two_runs_in_one_folder_and_of_runs_below(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    log_files.events(tmp_path / "a" / "events.out.tfevents.1")
    log_files.events(tmp_path / "a" / "events.out.tfevents.2", ROWS[:10])
    log_files.events(tmp_path / "a" / "b" / "events.out.tfevents.3", ROWS[:5])
    assert [len(run["loss"]) for run in read_all(tmp_path)] == [40, 10, 5]


def test_training_and_validation_folders_are_one_run(tmp_path: Path) -> None:
    for name, rows in (("train", ROWS), ("validation", ROWS[::4])):
        (tmp_path / name).mkdir()
        log_files.events(tmp_path / name / "events.out.tfevents.1", rows)
    run = load(tmp_path)
    assert len(run["loss"]) == 40 and len(run["validation/train/loss"]) == 10


def test_a_folder_of_many_runs(tmp_path: Path) -> None:
    for name in ("csv", "json_lines", "events", "mlflow", "wandb_folder"):
        (tmp_path / name).mkdir()
        write(name, tmp_path / name)
    (tmp_path / "README.md").write_text("# Runs\n\nloss: see below\n")
    (tmp_path / "config.json").write_text('{"lr": 0.1, "betas": [0.9, 0.95]}')
    assert sorted(run.format for run in read_all(tmp_path)) == ["csv_table", "json_lines", "mlflow_metrics", "tensorboard_events", "wandb_run"]


def test_another_loss_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {s}, "loss": {x}, "value_loss": {x / 2}}}\n' for s, x in zip(STEPS, LOSSES, strict=True)))
    (run,) = postmortem(path, loss="value_loss").runs
    assert run.loss_key == "value_loss" and run["loss"].values.tolist() == [x / 2 for x in LOSSES]
    assert run["loss (as logged)"].values.tolist() == LOSSES
    with pytest.raises(BadInput, match="no series 'nll'.* it has loss, value_loss"):
        postmortem(path, loss="nll")


def test_a_reader_from_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_reader.py").write_text(
        "from stabilitylens.readers import reader\n"
        "from stabilitylens.readers._rows import runs_from_rows\n"
        "from stabilitylens.readers._source import head, lines\n"
        "@reader(name='theirs', sniff=lambda path: 1.0 if head(path).startswith(b'THEIRS') else 0.0)\n"
        "def read(path):\n"
        "    'Their format.'\n"
        "    rows = (line.split('~') for line in lines(path) if '~' in line)\n"
        "    return runs_from_rows(path, 'theirs', ({'step': a, 'loss': b} for a, b in rows))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs = importlib.metadata.EntryPoint("theirs", "their_reader", "stabilitylens.readers")
    monkeypatch.setattr("stabilitylens.registry.entry_points", lambda group: [theirs])
    registry = Registry[readers.Reader]("stabilitylens.readers")
    for member in READERS:
        registry.add(member.name, member)
    for module in ("stabilitylens.readers._reader", "stabilitylens.readers"):
        monkeypatch.setattr(sys.modules[module], "READERS", registry)
    path = tmp_path / "log"
    path.write_text("THEIRS\n" + "".join(f"{s}~{x}\n" for s, x in zip(STEPS, LOSSES, strict=True)))
    run = load(path)
    assert run.format == "theirs" and run["loss"].values.tolist() == LOSSES


def test_reading_a_log_imports_no_torch(tmp_path: Path) -> None:
    path = write("json_lines", tmp_path)
    code = f"import sys; from stabilitylens import load; load({str(path)!r}); sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("member", READERS, ids=lambda member: member.name)
def test_every_reader_has_a_page_and_knows_nothing_in_nothing(member: readers.Reader, tmp_path: Path) -> None:
    assert member.summary.endswith((".", ":")) or member.summary.rstrip(".") and len(member.page.splitlines()) >= 3
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "empty", tmp_path / "folder"):
        assert not member.sniff(path)
