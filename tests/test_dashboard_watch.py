"""``stabilitylens watch``: one frame in a pipe, and a run that grows in a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from stabilitylens.cli import main
from stabilitylens.dashboard._frame import frame
from stabilitylens.dashboard._watched import Watched
from tests import run_builders as runs
from tests.test_dashboard import HOSTILE, append, record


def shown(watched: Watched, width: int = 120) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))
    console.print(frame(watched.look(), width))
    return console.export_text()


def test_a_frame_has_loss_worst_layers_and_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would wrap the lines that are looked for
    record(tmp_path, runs.logit_growth()).close()
    with pytest.raises(SystemExit) as left:
        main(["watch", ".", "--once"])
    text = capsys.readouterr().out
    assert left.value.code == 0
    assert "step 299" in " ".join(text.split())
    assert any(bar in text for bar in "▁▂▃▄▅▆▇█")
    line = next(line for line in text.splitlines() if "max_attn_logit" in line and "attention 2" in line)
    assert "17,800" in line
    assert "SL201 attention-logit-growth" in " ".join(text.split())


def test_incidents_come_as_the_run_grows(tmp_path: Path) -> None:
    run = runs.healthy()
    run.series["loss"].values[150:154] += 4
    writer = record(tmp_path, run, until=100)
    watched = Watched(tmp_path)
    assert "spike" not in shown(watched)
    append(writer, run, 100, 300)
    watched._until = 0.0
    assert "spike" in shown(watched) and "step 299" in shown(watched)
    writer.close()


def test_any_log_and_any_name(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("step,loss,[red]x[/red]\n" + "".join(f"{i},{3 - i / 100},1\n" for i in range(100)))
    assert "step 99" in shown(Watched(log))
    run = runs.healthy()
    run.series["[bold]" + HOSTILE] = runs.scalar("[bold]" + HOSTILE, np.ones(300))
    record(tmp_path / "[red]run", run).close()
    assert "[red]run" in shown(Watched(tmp_path / "[red]run"), 200)


def test_narrow_terminals_and_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "run", runs.logit_growth()).close()
    assert all(len(line) <= 50 for line in shown(Watched(tmp_path / "run"), 50).splitlines())
    with pytest.raises(SystemExit) as left:
        main(["watch", str(tmp_path / "other")])
    assert left.value.code == 2 and "does not exist" in capsys.readouterr().err


def test_it_follows_in_a_terminal_until_it_is_interrupted(tmp_path: Path) -> None:
    run = runs.logit_growth()
    writer = record(tmp_path, run, until=100)
    ours, theirs = pty.openpty()
    code = "import sys; from stabilitylens.cli import main; main(sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", code, "watch", str(tmp_path), "--interval", "0.3"], stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "400"})
    said = b""
    try:
        said += _until(ours, b"step 99")
        append(writer, run, 100, 300)
        said += _until(ours, b"step 299")
        process.send_signal(2)
        assert _left(process, ours) == 0
    finally:
        process.kill()
        writer.close()


def _left(process: subprocess.Popen[bytes], terminal: int) -> int:
    """What it leaves with; a terminal that nobody reads from would keep it from leaving."""
    end = time.monotonic() + 120
    while process.poll() is None:
        assert time.monotonic() < end
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 65536)
    return process.returncode


def _until(terminal: int, words: bytes) -> bytes:
    said, end = b"", time.monotonic() + 300
    while words not in said:
        assert time.monotonic() < end, said[-2000:]
        said += os.read(terminal, 65536)
    return said
