"""What can be read, and the one sentence for what cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.compat.proto.tensor_pb2 import TensorProto

from stabilitylens.errors import BadInput
from stabilitylens.header import Header
from stabilitylens.readers import READERS
from stabilitylens.readers._events import Tag, read_events
from stabilitylens.run import load
from stabilitylens.tfrecord import frame
from stabilitylens.writers.recording import RunWriter


def record(folder: Path) -> Path:
    writer = RunWriter(folder)
    writer.header(Header(sampling={"every": 2}))
    for step in range(6):
        writer.step(step, {"loss": float(step)})
        writer.sample(step, {"resid_rms/layer": np.full(2, float(step))})
    writer.close()
    return folder


def foreign(path: Path, tags: list[str], *, tensors: bool = False) -> Path:
    """An event file as other programs write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [event_pb2.Event(wall_time=1.0, file_version="brain.Event:2")]
    for step in range(300):
        for i, tag in enumerate(tags):
            value = summary_pb2.Summary.Value(tag=tag)
            if tensors:
                value.tensor.CopyFrom(TensorProto(dtype=1, tensor_shape={}, float_val=[step + i]))
            else:
                value.simple_value = step + i
            events.append(event_pb2.Event(wall_time=step + 1, step=step, summary={"value": [value]}))
    path.write_bytes(b"".join(frame(event.SerializeToString()) for event in events))
    return path


def sentence(path: Path) -> str:
    with pytest.raises(BadInput) as error:
        load(path)
    text = str(error.value)
    assert "\n" not in text and text.startswith(str(path)) and ";" in text
    return text


def test_the_folder_its_parent_and_each_file_are_read(tmp_path: Path) -> None:
    folder = record(tmp_path / "run") / "stabilitylens"
    for path in (tmp_path / "run", folder, str(folder)):
        assert set(load(path)) == {"loss", "resid_rms/layer"}
    events, arrays = next(folder.glob("events*")), folder / "arrays.0.sl"
    assert set(load(events)) == {"loss"} and set(load(arrays)) == {"resid_rms/layer"}
    assert load(events).header == load(arrays).header == load(folder).header
    assert load(folder).format == "recording"
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert set(load(tmp_path / "elsewhere")) == {"loss", "resid_rms/layer"}
    shutil.copy(arrays, tmp_path / "renamed.bin")
    assert set(load(tmp_path / "renamed.bin")) == {"resid_rms/layer"}


def test_what_tensorboard_got_is_there_when_the_arrays_are_lost(tmp_path: Path) -> None:
    folder = record(tmp_path) / "stabilitylens"
    (folder / "arrays.0.sl").unlink()
    run = load(tmp_path)
    assert list(run) == ["loss"]
    assert run.summaries["resid_rms/max"].values.tolist() == [0, 1, 2, 3, 4, 5]


def test_nothing_there(tmp_path: Path) -> None:
    assert "does not exist" in sentence(tmp_path / "nothing")


def test_an_empty_folder(tmp_path: Path) -> None:
    assert "is an empty folder" in sentence(tmp_path)


def test_a_folder_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    assert "holds notes.md" in sentence(tmp_path)


def test_a_folder_of_runs(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "deep" / "b")
    text = sentence(tmp_path)
    assert "2 runs" in text and "a, " + os.path.join("deep", "b") in text


def test_an_event_file_of_others(tmp_path: Path) -> None:
    path = foreign(tmp_path / "log" / "events.out.tfevents.1700000000.host.12.0", ["train/loss", "lr"])
    for run in (load(path), load(tmp_path / "log")):
        assert run.format == "tensorboard_events" and run.loss_key == "train/loss"
        assert run["loss"].values.tolist() == [float(step) for step in range(300)] and len(run["lr"]) == 300


def test_an_event_file_without_scalars(tmp_path: Path) -> None:
    assert "without any tag" in sentence(foreign(tmp_path / "events.out.tfevents.1.h", []))


@pytest.mark.parametrize(("content", "what"), [
    (b"", "is an empty file"),
    (b"step: none\nname: a\n", "is a text file"),
    (b'{"a": NaN}', "is a text file"),
    (("x" + "é" * 3000).encode(), "is a text file"),
    (b"\x80\x02}q\x00." * 100, "is a binary file"),
    (bytes(1000), "is a binary file"),
])
def test_files_of_other_kinds(tmp_path: Path, content: bytes, what: str) -> None:
    for path in (tmp_path / "log.txt", tmp_path / "events.out.tfevents.1.host.2.3", tmp_path / "arrays.0.sl"):
        path.write_bytes(content)
        assert what in sentence(path)


def test_a_recording_of_which_nothing_is_left(tmp_path: Path) -> None:
    folder = record(tmp_path) / "stabilitylens"
    for path in folder.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert "no record can be read" in sentence(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind here")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "stabilitylens").chmod(0)
    assert "cannot be read" in sentence(tmp_path)


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="cannot record in .*file.*; give a log directory"):
        RunWriter(tmp_path / "file")


def test_a_run_that_was_attached_and_nothing_else(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(Header(sampling={"every": 7}))
    run = load(tmp_path)
    writer.close()
    assert dict(run) == {} and run.header.sampling == {"every": 7} and run.notes == []


def test_without_any_header_axes_come_from_the_records(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    arrays = {
        "max_attn_logit/attention_head": ("attention", "head"),
        "key_norm/attention_kv_head": ("attention", "kv_head"),
        "odd/a_b_c": ("axis_0", "axis_1"),
    }
    writer.sample(0, {name: np.ones((2, 3)) for name in arrays})
    writer.close()
    run = load(tmp_path)
    assert {name: series.axes for name, series in run.items()} == arrays
    assert any("no header" in note for note in run.notes)


def test_others_tags_in_our_folder_are_kept_as_they_are(tmp_path: Path) -> None:
    record(tmp_path)
    foreign(tmp_path / "stabilitylens" / "events.out.tfevents.1700000000.host.12.0", ["loss/train", "My/Tag", "x"])
    foreign(tmp_path / "stabilitylens" / "events.out.tfevents.1700000001.host", ["y"], tensors=True)
    run = load(tmp_path)
    assert run["loss"].values.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(run["loss/train"]) == len(run["My/Tag"]) == len(run["x"]) == len(run["y"]) == 300


@pytest.mark.parametrize("tensors", [False, True])
def test_all_points_of_any_event_file(tmp_path: Path, tensors: bool) -> None:
    tags = [f"layer_{i:02d}/norm" for i in range(40)] + ["loss", "ünï"]
    file = read_events(foreign(tmp_path / "events.out.tfevents.1.h", tags, tensors=tensors))
    assert set(file.scalars) == {Tag(0, tag, "") for tag in tags} and len(file.others) == 1 and not file.ours()
    for i, tag in enumerate(tags):
        points = file.scalars[Tag(0, tag, "")]
        assert points.steps.tolist() == list(range(300))
        assert points.values.tolist() == [step + i for step in range(300)]
        assert points.walls.tolist() == [step + 1 for step in range(300)]


def test_records_that_are_no_events_are_skipped_and_counted(tmp_path: Path) -> None:
    record(tmp_path)
    path = next((tmp_path / "stabilitylens").glob("events*"))
    path.write_bytes(path.read_bytes() + frame(b"\xff\xff\xff") + frame(b""))
    arrays = tmp_path / "stabilitylens" / "arrays.0.sl"
    arrays.write_bytes(arrays.read_bytes() + frame(b"something else") + frame(b"SLAR\x02" + bytes(40)))
    run = load(tmp_path)
    assert len(run["loss"]) == len(run["resid_rms"]) == 6
    assert [note.split(":")[0] for note in run.notes] == [
        "2 records of arrays.0.sl were skipped", f"1 records of {path.name} were skipped",
    ]


def test_reading_does_not_import_torch(tmp_path: Path) -> None:
    record(tmp_path)
    code = (
        "import sys; sys.modules['torch'] = None; import stabilitylens as sl; run = sl.load(sys.argv[1]);"
        "assert len(run['loss']) == 6; assert not any(m.startswith(('tensorflow', 'torch.')) for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_every_reader_has_a_page() -> None:
    for member in READERS:
        assert member.page and member.name and callable(member.sniff)
    assert "recording" in READERS
