"""Running claims: stopped, killed, damaged, twice at once; and that pages say when and with what it was measured."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stabilitylens.cli import app
from stabilitylens.errors import BadInput
from stabilitylens.reproductions import Ledger, reproduce
from stabilitylens.reproductions._folder import LOCK, held
from stabilitylens.reproductions._markdown import page
from stabilitylens.reproductions._origin import Origin
from stabilitylens.reproductions._ranks import Ranks
from stabilitylens.reproductions._store import read_result, write_result
from stabilitylens.reproductions._text import write
from tests.invented_claims import await_, calls, invented


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are read from /proc")
def test_an_interrupt_stops_all_processes_and_says_how_to_go_on(tmp_path: Path):
    command = [sys.executable, "-m", "stabilitylens", "reproduce", "no-normalisation", "--workers", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        await_(lambda: (tmp_path / "quick" / "runs").exists())
        workers = [Path("/proc", pid) for pid in listed.read_text().split()]
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and said.count("run the same command to go on") == 1 and "Traceback" not in said
    assert len(workers) >= 2
    await_(lambda: not any((worker / "cmdline").exists() and (worker / "cmdline").read_bytes() for worker in workers))


def test_a_killed_worker_is_a_sentence_and_what_was_measured_stays(tmp_path: Path):
    reproduce([invented(1)], "quick", tmp_path, workers=1)
    with pytest.raises(BadInput, match="a worker process ended without a result.*the same command goes on"):
        reproduce([invented(1, 13)], "quick", tmp_path, workers=2)
    before = calls(tmp_path)
    assert before > 2
    assert reproduce([invented(1)], "quick", tmp_path, workers=1).entries[0].verdict == "reproduced" and calls(tmp_path) == before


def test_what_concludes_need_not_be_sendable(tmp_path: Path):
    claim = replace(invented(1, 2), conclude=lambda table: {"largest": 1.0})
    assert reproduce([claim], "quick", tmp_path, workers=2).entries[0].verdict == "reproduced"


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BadInput, match=r"cannot write in .*file.quick: Not a directory; .*--out"):
        reproduce([invented(1)], "quick", tmp_path / "file", workers=1)

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BadInput, match="No space left on device; free space there"):
        reproduce([invented(1)], "quick", tmp_path, workers=1)
    assert calls(tmp_path) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_that_cannot_be_written_any_more_ends_the_run(tmp_path: Path, workers: int):
    with pytest.raises(BadInput, match="cannot write in .*what is stored already is not measured again"):
        reproduce([invented(14)], "quick", tmp_path, workers=workers)


@pytest.mark.parametrize("output", ["", "file/claims.md"])
def test_an_output_that_cannot_be_written_is_said_first(tmp_path: Path, output: str):
    (tmp_path / "file").write_text("not a folder")
    given = ["reproduce", "rank-collapse", "--out", str(tmp_path / "out"), "--format", "markdown", "-o", str(tmp_path / output)]
    assert "cannot write" in str(CliRunner().invoke(app(), given).exception) and not (tmp_path / "out").exists()


def victim(folder: Path) -> Path:
    return folder / "quick" / "results" / "noted" / "arm@1" / "seed_0.json"


DAMAGE: dict[str, Callable[[dict[str, object]], object]] = {
    "a list": lambda found: [1, 2],
    "null": lambda found: None,
    "nothing": lambda found: {},
    "no numbers": lambda found: {k: v for k, v in found.items() if k != "numbers"},
    "another number": lambda found: found | {"numbers": {"other": 1.0}},
    "a string": lambda found: found | {"numbers": {"value": "1"}},
    "of before origins were kept": lambda found: {k: found[k] for k in ("fingerprint", "seconds", "numbers")},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_result_is_measured_again(tmp_path: Path, damage: str):
    first = reproduce([invented(1)], "quick", tmp_path, workers=1)
    victim(tmp_path).write_text(json.dumps(DAMAGE[damage](json.loads(victim(tmp_path).read_text()))))
    again = reproduce([invented(1)], "quick", tmp_path, workers=1)
    assert calls(tmp_path) == 3 and again.entries[0].cells == first.entries[0].cells


def with_origin(folder: Path, change: Callable[[Origin], Origin]) -> None:
    found = read_result(victim(folder))
    assert found is not None
    write_result(replace(found, origin=change(found.origin)), victim(folder))


def versions(**changed: str) -> Callable[[Origin], Origin]:
    return lambda origin: replace(origin, versions={**origin.versions, **{name: (version,) for name, version in changed.items()}})


@pytest.mark.parametrize(("name", "again"), [("torch", True), ("numpy", True), ("Python", False)])
def test_a_result_of_another_torch_or_numpy_is_measured_again(tmp_path: Path, name: str, again: bool):
    reproduce([invented(1)], "quick", tmp_path, workers=1)
    with_origin(tmp_path, versions(**{name: "0.1"}))
    reproduce([invented(1)], "quick", tmp_path, workers=1)
    assert calls(tmp_path) == 2 + again


def test_dates_and_versions_are_those_of_the_measurements(tmp_path: Path):
    today = reproduce([invented(1)], "quick", tmp_path, workers=1).origin
    with_origin(tmp_path, lambda origin: replace(versions(Python="3.0")(origin), dates=("2001-02-03",), machines=("an abacus",)))
    ledger = reproduce([invented(1)], "quick", tmp_path, workers=1)
    assert calls(tmp_path) == 2 and ledger.origin.days == f"2001-02-03 to {today.dates[0]}"
    told = io.StringIO()
    write(ledger, told)
    for text in (told.getvalue().replace("\n", " "), page(ledger, "")):
        assert "2001-02-03 to " in text and "an abacus" in text and f"Python 3.0 and {today.versions['Python'][0]}" in text
    assert Ledger.read(tmp_path / "quick" / "ledger.json") == ledger


def test_two_runs_in_one_folder_are_refused(tmp_path: Path):
    with held(tmp_path / "quick", Ranks()), pytest.raises(BadInput, match="quick is in use by another run"):
        reproduce([invented(1)], "quick", tmp_path, workers=1)
    assert calls(tmp_path) == 0
    assert reproduce([invented(1)], "quick", tmp_path, workers=1).entries[0].cells


HOLD = """
import sys, time
from pathlib import Path
from stabilitylens.reproductions._folder import held
from stabilitylens.reproductions._ranks import Ranks
with held(Path(sys.argv[1]), Ranks()):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_is_free_when_its_run_was_killed(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "quick")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(BadInput, match="in use"):
            reproduce([invented(1)], "quick", tmp_path, workers=1)
    finally:
        process.kill()
        process.communicate()
    assert reproduce([invented(1)], "quick", tmp_path, workers=1).entries[0].cells


def test_a_rank_begins_only_when_the_first_one_of_its_run_has_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASTER_PORT", "1234")
    with held(tmp_path, Ranks(0, 2)), held(tmp_path, Ranks(1, 2)):
        assert (tmp_path / LOCK).read_text() == Ranks(1, 2).group
    monkeypatch.setattr("stabilitylens.reproductions._folder.PATIENCE", 0.3)
    with pytest.raises(BadInput, match="the first rank did not begin"), held(tmp_path, Ranks(1, 2)):
        pass


def test_one_claim_after_others_keeps_their_entries(tmp_path: Path):
    reproduce([invented(1, name="first"), invented(2, name="second")], "quick", tmp_path, workers=1)
    only = reproduce([invented(9, name="second")], "quick", tmp_path, workers=1)
    kept = Ledger.read(tmp_path / "quick" / "ledger.json").entries
    assert [entry.name for entry in only.entries] == ["second"] and kept[1] == only.entries[0]
    assert [(entry.name, entry.verdict) for entry in kept] == [("first", "reproduced"), ("second", "not reproduced")]
