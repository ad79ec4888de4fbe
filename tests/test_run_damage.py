"""A flipped byte, a cut file, a torn record, a killed process: everything else is read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitylens.header import Header, MetricMeta
from stabilitylens.readers._framing import scan
from stabilitylens.run import Event, Run, load
from stabilitylens.tfrecord import frame
from stabilitylens.writers.recording import RunWriter

HEADER = Header(metrics={"resid_rms": MetricMeta("resid_rms", "1", ("layer",), "RMS")}, labels={"layer": ("a", "b")})


@dataclass
class Expected:
    """What each record of a file holds: its range of bytes, and the point that is lost with it."""

    spans: dict[str, list[tuple[int, int, object]]] = field(default_factory=lambda: {"events": [], "arrays": []})

    def points(self, kind: str, lost: range) -> list[object]:
        return [
            point for begin, end, point in self.spans[kind] if end <= lost.start or begin >= lost.stop
        ]


def size_of(folder: Path, kind: str) -> int:
    return next((folder / "stabilitylens").glob(f"{kind}.*")).stat().st_size


def recorded(folder: Path) -> Expected:
    """A recording of which every record's place is known."""
    out, writer = Expected(), RunWriter(folder)

    def note(kind: str, begin: int, point: object) -> None:
        path = next((folder / "stabilitylens").glob(f"{kind}.*"))
        length = int.from_bytes(path.read_bytes()[begin:begin + 8], "little")
        out.spans[kind].append((begin, begin + 16 + length, point))

    writer.header(HEADER)
    for step in range(130, 142):
        begin = size_of(folder, "events")
        writer.step(step, {"loss": step / 2, "Odd Name": -step})
        note("events", begin, (step, step / 2, -float(step)))
        if step % 3 == 0:
            begin = size_of(folder, "arrays")
            writer.sample(step, {"resid_rms/layer": np.array([step, -step])})
            note("arrays", begin, (step, [float(step), -float(step)]))
        if step % 5 == 0:
            begin = size_of(folder, "events")
            writer.event(step, "step_skipped", f"at {step}")
            note("events", begin, Event(step, "step_skipped", f"at {step}"))
    writer.close()
    return out


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    folder = tmp_path_factory.mktemp("recording")
    return folder, recorded(folder)


def found(run: Run, kind: str) -> list[object]:
    if kind == "arrays":
        if "resid_rms/layer" not in run:
            return []
        series = run["resid_rms/layer"]
        return [(int(s), v.tolist()) for s, v in zip(series.steps, series.values, strict=True)]
    events: list[object] = list(run.events)
    if "loss" not in run:
        return events
    loss, odd = run["loss"], run["Odd Name"]
    assert loss.steps.tolist() == odd.steps.tolist()
    return events + list(zip(loss.steps.tolist(), loss.values.tolist(), odd.values.tolist(), strict=True))


def damaged(folder: Path, kind: str, data: bytes) -> Run:
    """The recording with other content in one of its files."""
    with tempfile.TemporaryDirectory() as copy:
        for path in (folder / "stabilitylens").iterdir():
            content = data if path.name.startswith(kind) else path.read_bytes()
            (Path(copy) / path.name).write_bytes(content)
        run = load(copy)
        run.series = {name: replace(series, values=np.array(series.values)) for name, series in run.items()}
        return run


def content(folder: Path, kind: str) -> bytes:
    return next((folder / "stabilitylens").glob(f"{kind}.*")).read_bytes()


def check(run: Run, expected: Expected, kind: str, lost: range) -> None:
    for other in ("events", "arrays"):
        wanted = expected.points(other, lost if other == kind else range(0, 0))
        assert sorted(map(str, found(run, other))) == sorted(map(str, wanted))
    assert run.header == HEADER


@pytest.mark.parametrize("kind", ["events", "arrays"])
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_a_flipped_byte_loses_only_its_record(recording: tuple[Path, Expected], kind: str, data: st.DataObject) -> None:
    folder, expected = recording
    whole = bytearray(content(folder, kind))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    run = damaged(folder, kind, bytes(whole))
    check(run, expected, kind, range(at, at + 1))
    assert len(run.notes) == 1 and "damaged" in run.notes[0]


@pytest.mark.parametrize("kind", ["events", "arrays"])
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_a_cut_loses_only_what_is_cut(recording: tuple[Path, Expected], kind: str, data: st.DataObject) -> None:
    folder, expected = recording
    whole = content(folder, kind)
    at = data.draw(st.integers(0, len(whole)))
    check(damaged(folder, kind, whole[:at]), expected, kind, range(at, len(whole)))


@pytest.mark.parametrize("kind", ["events", "arrays"])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_bytes_that_vanish_or_appear_lose_only_the_records_they_are_in(
    recording: tuple[Path, Expected], kind: str, data: st.DataObject
) -> None:
    folder, expected = recording
    whole = content(folder, kind)
    at = data.draw(st.integers(0, len(whole) - 1))
    gone = data.draw(st.integers(0, 90))
    new = data.draw(st.binary(min_size=1, max_size=90))
    end = min(len(whole), at + gone)
    run = damaged(folder, kind, whole[:at] + new + whole[end:])
    if whole[:at] + new + whole[end:] == whole:
        return
    found_points = set(map(str, found(run, kind)))
    # what lies strictly before and after the change is whole
    wanted = [p for b, e, p in expected.spans[kind] if e <= at or b >= end]
    assert set(map(str, wanted)) <= found_points


def test_many_records_in_one_damaged_length(tmp_path: Path) -> None:
    """A record that was torn and then written past: its length reaches over good records."""
    torn = frame(bytes(5000))[:40]
    good = [frame(bytes([n]) * 30) for n in range(200)]
    data = np.frombuffer(b"".join([*good[:100], torn, *good[100:]]), dtype=np.uint8)
    frames = scan(data)
    assert [data[start] for start in frames.starts] == list(range(200))
    assert frames.gaps == ((4600, 4640),)


def test_a_tail_of_zeros_as_after_a_power_cut(tmp_path: Path) -> None:
    recorded(tmp_path)
    path = next((tmp_path / "stabilitylens").glob("events.*"))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(1 << 20))
    run = load(tmp_path)
    assert len(run["loss"]) == 12
    assert run.notes == [
        f"{path.name} ends in an unfinished or damaged record, which was skipped (bytes {size} to {size + (1 << 20)})"
    ]


def test_much_damage_is_passed(tmp_path: Path) -> None:
    records = [frame(n.to_bytes(4, "little") * 10) for n in range(20_000)]
    data = np.frombuffer(b"".join(records), dtype=np.uint8).copy()
    bad = np.arange(0, 20_000, 100)
    data[bad * 56 + np.random.default_rng(0).integers(0, 56, len(bad))] ^= 16
    frames = scan(data)
    assert len(frames.gaps) == len(bad)
    read = [int.from_bytes(data[start:start + 4].tobytes(), "little") for start in frames.starts]
    assert read == [n for n in range(20_000) if n % 100]


def torn_writes(monkeypatch: pytest.MonkeyPatch, *, cut_fails: bool) -> None:
    """Some writes stop half way as on a full disk."""
    write, chance = os.write, random.Random(0)

    def half(file: int, data: bytes) -> int:
        if chance.random() < 0.2:
            write(file, data[:len(data) // 2])
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", half)
    if cut_fails:
        def fail(file: int, length: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "ftruncate", fail)


@pytest.mark.parametrize("cut_fails", [False, True])
def test_what_is_written_after_a_full_disk_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_fails: bool
) -> None:
    writer = RunWriter(tmp_path)
    kept: dict[str, list[int]] = {"lr": [], "resid_rms": []}
    torn_writes(monkeypatch, cut_fails=cut_fails)
    for step in range(60):
        try:
            writer.step(step, {"lr": step})
            kept["lr"].append(step)
            writer.sample(step, {"resid_rms/layer": np.full(3, step)})
            kept["resid_rms"].append(step)
        except OSError:
            continue
    monkeypatch.undo()
    writer.close()
    run = load(tmp_path)
    assert 0 < len(kept["resid_rms"]) < len(kept["lr"]) < 60
    assert run["lr"].steps.tolist() == kept["lr"]
    assert set(kept["resid_rms"]) <= set(run["resid_rms"].steps.tolist())
    assert any("damaged" in note for note in run.notes) == cut_fails


def test_a_partial_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    writer = RunWriter(tmp_path)
    writer.step(1, {"loss": 2.0})
    writer.close()
    monkeypatch.undo()
    run = load(tmp_path)
    assert run["loss"].values.tolist() == [2.0]


KILLED = """
import sys, itertools, numpy as np
from pathlib import Path
from stabilitylens.writers.recording import RunWriter
writer = RunWriter(Path(sys.argv[1]))
for step in itertools.count():
    writer.step(step, {"loss": step, "lr": 1e-3})
    if step % 10 == 0:
        writer.sample(step, {"resid_rms/layer": np.full(80, step)})
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
"""


def printed(process: subprocess.Popen[str]) -> Iterator[int]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):
            yield int(line)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_every_step_that_returned_survives_kill_9(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    last = -1
    for last in printed(process):
        if last == 500:
            process.send_signal(signal.SIGKILL)
    process.wait()
    run = load(tmp_path)
    assert last >= 500
    assert set(range(last + 1)) <= set(run["loss"].steps.tolist())
    assert set(range(0, last + 1, 10)) <= set(run["resid_rms"].steps.tolist())
    np.testing.assert_array_equal(run["loss"].values, run["loss"].steps)
