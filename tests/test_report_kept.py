"""What a post-mortem says of an incident that the black box kept: the incident, its replay, its cure, and what to call next."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_incidents import BAD, Loop
from training import one_thread

import stabilitylens as sl
from stabilitylens.beside import REPLAY, TABLE
from stabilitylens.dumps import INCIDENTS, Dump, dumps_of
from stabilitylens.hooks.blackbox import folder as folders
from stabilitylens.run import Event, Run

REPLAYS, CURES = "stabilitylens.replay(", "stabilitylens.counterfactuals("
FORMS = ("text", "html", "json", "line", "sarif")


@pytest.fixture(scope="module")
def stages(tmp_path_factory) -> list[Path]:
    """The folder of one run: dumped; replayed too; cures tried too."""
    with one_thread():
        root, loop = tmp_path_factory.mktemp("runs"), Loop()
        dumped, replayed, cured = (root / name for name in ("dumped", "replayed", "cured"))
        loop.train(dumped)
        shutil.copytree(dumped, replayed)
        sl.replay(replayed, *loop.parts(), loop.again)
        shutil.copytree(replayed, cured)
        loop.table(cured, "skip_batch", "halve_lr")
        return [dumped, replayed, cured]


def incident_of(run: Path) -> Path:
    return run / INCIDENTS / f"step_{BAD}"


def text_of(run: Path, form: str) -> str:
    stream = io.StringIO()
    sl.postmortem(run).write(stream, form)
    return "".join(stream.getvalue().split())  # a terminal breaks lines anywhere


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_what_comes_next_until_it_is_done(form: str, stages: list[Path]):
    found = [text_of(run, form) for run in stages]
    assert [REPLAYS in text for text in found] == [True, False, False]
    assert [CURES in text for text in found] == [True, True, False]
    assert all(squeezed(str(incident_of(run))) in text for run, text in zip(stages, found, strict=True))
    assert ["everyrecordedlossisequaltothebit" in text for text in found] == [False, True, True]
    assert ["skip_batchavertsit" in text for text in found] == [False, False, True]


@pytest.mark.parametrize("form", ["text", "html", "json", "sarif"])
def test_replay_and_cure_are_named_by_their_files(form: str, stages: list[Path]):
    for i, run in enumerate(stages):
        for n, kind in enumerate((REPLAY, TABLE)):
            path = kind.path(incident_of(run))
            assert path.is_file() == (squeezed(str(path)) in text_of(run, form)) == (i > n)


def test_the_page_leads_from_incident_and_suspect_to_what_was_kept_and_back(stages: list[Path]):
    page = sl.postmortem(stages[2]).to_html()
    assert page.count('href="#kept-0-0"') >= 2 and page.count('id="kept-0-0"') == 1
    assert 'href="#suspect-0-bad-batch"' in page and 'id="suspect-0-bad-batch"' in page
    folder = incident_of(stages[2])
    links = [f"href={chr(34)}{path.as_uri()}{chr(34)}" for path in (folder, REPLAY.path(folder), TABLE.path(folder))]
    assert all(link in page for link in links)
    assert "without any change" in str(sl.postmortem(stages[2])) and "<td>none</td>" in page


def test_the_json_joins_a_dump_to_its_incidents(stages: list[Path]):
    report = sl.postmortem(stages[2])
    (run,) = json.loads(report.to_json())["runs"]
    (dump,), (subject,) = run["dumps"], report.subjects
    assert dump == json.loads(json.dumps(subject.dumps[0].to_dict())) | {"incidents": dump["incidents"]}
    (incident,) = (run["incidents"][i] for i in dump["incidents"])
    assert incident["start_step"] <= BAD <= incident["end_step"]
    assert dump["replay"]["exact"] is True and dump["calls"] == [] and dump["unchanged_loss_after"] > 0
    assert json.loads(sl.postmortem(stages[0]).to_json())["runs"][0]["dumps"][0]["replay"] is None


def test_the_page_of_the_json_names_every_key_of_a_dump(stages: list[Path]):
    page = Path(__file__).parent.parent / "docs" / "json.md"
    if not page.exists():
        pytest.skip("the sources are out of reach")
    rows = re.findall(r"^\| (`.*?) \|", page.read_text(encoding="utf-8").split("### A dump")[1].split("###")[0], re.MULTILINE)
    (dump,) = json.loads(sl.postmortem(stages[2]).to_json())["runs"][0]["dumps"]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(dump)


def test_the_suspect_that_was_tested_gains_and_batches_that_were_kept_are_not_called_unknown(stages: list[Path]):
    first, last = (sl.postmortem(stages[i]) for i in (0, 2))
    before, after = (next(s for s in report.suspects if s["name"] == "bad-batch") for report in (first, last))
    assert after["score"] > before["score"] and "tested on a replay: skip_batch" in after["evidence_for"][0]
    assert "not tested yet" in " ".join(str(first).split()) and "not tested yet" not in " ".join(str(last).split())
    assert "Which samples were in the batches" not in str(first)


def test_what_a_replay_found_is_read_back_as_it_was(tmp_path):
    loop = Loop()
    found = sl.replay(loop.train(tmp_path), *loop.parts(), loop.again)
    body = REPLAY.read(Path(found.folder))
    assert body is not None and body["text"] == str(found) and body["exact"] is found.exact
    assert body["losses"] == {str(step): loss for step, loss in found.losses.items()}


def test_a_replay_that_can_not_be_written_says_so(tmp_path, monkeypatch):
    loop = Loop()
    incident = loop.train(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stabilitylens.hooks.blackbox.result.Replay.save", full)
    assert "a post-mortem will not know of it" in str(sl.replay(incident, *loop.parts(), loop.again))


def test_an_incident_without_a_snapshot_says_why_it_can_not_be_run_again(tmp_path):
    loop = Loop()
    model, optimizer = loop.parts()
    with sl.attach(model, optimizer, tmp_path, blackbox=True) as lens:
        for _ in range(3):
            lens.step(loop.step(model, optimizer, [lens.batch(torch.randint(16, (4, 6)))], lens))
        lens.dump()
    (dump,) = sl.postmortem(tmp_path).subjects[0].dumps
    assert dump.calls == [] and "snapshot_every" in dump.lacks
    assert "not possible: no snapshot was kept" in " ".join(str(sl.postmortem(tmp_path)).split())


def test_a_dump_that_is_gone_is_told_from_the_record_and_damaged_files_are_none(tmp_path):
    run = Run(str(tmp_path), {}, events=[Event(7, "incident_dumped", "step 7: spike")])
    (gone,) = dumps_of(run)
    assert gone == Dump(7, "step 7: spike", None) and gone.calls == [] and "no longer there" in gone.summary
    folder = tmp_path / INCIDENTS / "step_7"
    folder.mkdir(parents=True)
    for text in ("{", "[]", *(json.dumps({"format": k.format, "version": 1, "rows": [{"name": 3}], "text": 1}) for k in (TABLE, REPLAY))):
        for kind in (TABLE, REPLAY):
            kind.path(folder).write_text(text)
        (found,) = dumps_of(run)
        assert found == Dump(7, "step 7: spike", str(folder), lacks="its folder holds no manifest.json that can be read")


def test_what_was_found_goes_with_its_incident(tmp_path):
    folder = tmp_path / "step_7"
    folder.mkdir()
    for kind in (TABLE, REPLAY):
        kind.path(folder).write_text("{}")
    assert folders.make_room(tmp_path, 1, 2) == ["step_7"]
    assert list(tmp_path.iterdir()) == []


def test_reading_needs_no_torch(stages: list[Path]):
    code = f"import sys, stabilitylens as sl; r = sl.postmortem({str(stages[2])!r}); print(r.subjects[0].dumps[0].summary); print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "skip_batch averts it" in said and said.split()[-1] == "False"
