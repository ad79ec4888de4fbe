"""Damage to a record is said wherever the record is shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stabilitylens import cli, load
from stabilitylens.dashboard._recording import Recording
from stabilitylens.dashboard._verdicts import judged
from stabilitylens.header import Header
from stabilitylens.writers.recording import RunWriter


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A recording of 40 samples whose arrays are overwritten in the middle."""
    writer = RunWriter(tmp_path)
    writer.header(Header(labels={"layer": tuple("abcd")}))
    for step in range(1, 41):
        writer.step(step, {"loss": 5 / step})
        writer.sample(step, {"resid_rms/layer": np.full(4, float(step))})
    writer.close()
    arrays = next(tmp_path.rglob("arrays.*"))
    data = bytearray(arrays.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 60] = bytes(60)
    arrays.write_bytes(data)
    return tmp_path


def test_the_tab_says_what_a_report_says(damaged: Path) -> None:
    notes = [note for note in load(damaged).notes if "damaged" in note]
    assert notes
    said = judged("run", Recording(damaged).look())["notes"]
    assert said
    assert {note.split("(")[0] for note in said} == {note.split("(")[0] for note in notes}


def test_the_terminal_says_it(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["watch", str(damaged), "--once"])
    assert not left.value.code
    assert "is damaged and was skipped" in " ".join(capsys.readouterr().out.split())
