"""What a run may be given as: one of several in a file or folder, a pipe, a damaged archive, a device."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from pathlib import Path

import pytest

from stabilitylens import compare, load, postmortem
from stabilitylens.cli import main
from stabilitylens.errors import BadInput
from stabilitylens.readers import read_all

CURVES = [[round(9 + k - 0.01 * i - (i % 7) / 50, 4) for i in range(60)] for k in range(3)]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "three.log"
    path.write_text("".join(f"step {i} loss {x}\n" for curve in CURVES for i, x in enumerate(curve)))
    return path


def test_one_of_the_runs_of_a_file_goes_by_its_number(three: Path) -> None:
    for i, curve in enumerate(CURVES):
        run = load(f"{three}#{i + 1}")
        assert run["loss"].values.tolist() == curve and run.path == f"{three}#{i + 1}"
    with pytest.raises(BadInput, match=rf"holds 3 runs \(1, 2, 3\); give one of them, as in {three}#1$"):
        load(three)
    with pytest.raises(BadInput, match="none that is called '4'; give one that it holds"):
        load(f"{three}#4")


def test_of_a_table_with_named_runs_one_goes_by_its_name_and_of_a_folder_too(three: Path, tmp_path: Path) -> None:
    table = tmp_path / "all.csv"
    table.write_text("run,step,loss\n" + "".join(f"seed {k},{i},{x}\n" for k, curve in enumerate(CURVES) for i, x in enumerate(curve)))
    assert load(f"{table}#seed 1")["loss"].values.tolist() == load(f"{table}#2")["loss"].values.tolist() == CURVES[1]
    assert load(f"{tmp_path}#three.log#3")["loss"].values.tolist() == CURVES[2]


def test_a_file_whose_own_name_has_the_sign(three: Path, tmp_path: Path) -> None:
    path = three.rename(tmp_path / "a#1")
    assert len(read_all(path)) == 3 and load(f"{path}#2")["loss"].values.tolist() == CURVES[1]


def test_every_command_takes_one_of_several(three: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert [subject.name for subject in postmortem(f"{three}#2", f"{three}#3").subjects] == [f"{three}#2", f"{three}#3"]
    assert compare(f"{three}#1", f"{three}#2") is not None
    with pytest.raises(SystemExit) as left:
        main(["export", f"{three}#2", "--to", "csv", "-o", str(tmp_path / "out.csv")])
    assert left.value.code == 0 and f"0,loss,{CURVES[1][0]}" in (tmp_path / "out.csv").read_text()
    with pytest.raises(SystemExit) as left:
        main(["export", f"{three}#2", "--to", "csv", "-o", str(three)])
    assert left.value.code == 2 and "would be overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_named_pipe_is_read_as_standard_input(three: Path, pack, tmp_path: Path) -> None:
    pipe, data = tmp_path / "pipe", pack(three.read_bytes())
    for name, runs in ((str(pipe), 3), (f"{pipe}#2", 1)):
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        writer = threading.Thread(target=lambda: pipe.write_bytes(data))
        writer.start()
        found = read_all(Path(name))
        writer.join()
        assert len(found) == runs and found[-1].path == f"{pipe}#{3 if runs == 3 else 2}"


def test_one_of_the_runs_of_standard_input(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(three.read_bytes())))
    assert load("-#2")["loss"].values.tolist() == CURVES[1]


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_one_sentence(device: str) -> None:
    with pytest.raises(BadInput, match=f"^{device} is a device and holds no log; give "):
        load(device)


@pytest.mark.parametrize(("kept", "behind", "least"), [(0.5, b"", 700), (0.05, b"", 40), (1.0, b"no archive", 2000)])
def test_a_small_archive_gives_all_before_the_damage(kept: float, behind: bytes, least: int, tmp_path: Path) -> None:
    losses = [i * 7919 % 10**4 + 1 for i in range(2000)]
    data = gzip.compress("".join(f'{{"step": {i}, "loss": {x}}}\n' for i, x in enumerate(losses)).encode())
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(data[:int(kept * len(data))] + behind)
    run = load(path)
    assert len(run["loss"]) >= least and run["loss"].values[:least].tolist() == losses[:least]
    assert any("cut or damaged" in note for note in run.notes)
