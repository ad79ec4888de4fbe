"""The plugin's backend: what it answers, from files that grow, and what it refuses."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugins.base_plugin import TBContext
from werkzeug.test import Client

from stabilitylens.dashboard import _files
from stabilitylens.dashboard._maps import bins
from stabilitylens.dashboard._places import roots_of
from stabilitylens.dashboard._recording import Recording
from stabilitylens.dashboard.plugin import StabilityLensPlugin
from stabilitylens.header import Header, MetricMeta
from stabilitylens.readers import read
from stabilitylens.run import Run
from stabilitylens.writers.recording import RunWriter
from tests import run_builders as runs

LOGITS = "max_attn_logit/attention_head"
HOSTILE = "a<img src=x onerror=alert(1)>"


def record(folder: Path, run: Run, *, until: int = 1 << 30) -> RunWriter:
    """Write a run's steps to a folder; the writer is left open."""
    writer = RunWriter(folder)
    writer.header(run.header)
    append(writer, run, 0, until)
    return writer


def append(writer: RunWriter, run: Run, first: int, until: int) -> None:
    for i, step in enumerate(run["loss"].steps.tolist()):
        if not first <= step < until:
            continue
        writer.step(step, {name: s.values[i] for name, s in run.series.items() if not s.axes})
        if step % runs.EVERY == 0:
            writer.sample(step, {name: s.values[step // runs.EVERY] for name, s in run.series.items() if s.axes})


class Tab:
    """The plugin as TensorBoard would serve it."""

    def __init__(self, folder: Path, spec: str = "") -> None:
        context = TBContext(logdir="" if spec else str(folder), flags=SimpleNamespace(logdir_spec=spec))
        self.plugin = StabilityLensPlugin(context)
        self.apps = self.plugin.get_plugin_apps()

    def response(self, route: str, method: str = "GET", **parameters: Any) -> Any:
        return Client(self.apps[route]).open(route, method=method, query_string=parameters)

    def get(self, route: str, **parameters: Any) -> Any:
        response = self.response(route, **parameters)
        assert response.status_code == 200, response.data
        return json.loads(response.data)


def unpacked(text: str, kind: str, rows: int = 1) -> np.ndarray:
    return np.frombuffer(b64decode(text), kind).reshape(rows, -1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("logs")
    record(out / "base", runs.logit_growth()).close()
    record(out / "deep" / HOSTILE, runs.healthy()).close()
    return out


def test_runs_are_named_by_their_place(folder: Path) -> None:
    assert [run["name"] for run in Tab(folder).get("/runs")] == ["base", f"deep/{HOSTILE}"]
    assert [run["name"] for run in Tab(folder / "base").get("/runs")] == ["base"]
    assert [run["name"] for run in Tab(folder / "base" / "stabilitylens").get("/runs")] == ["base"]
    assert [run["name"] for run in Tab(folder, f"one:{folder / 'base'},{folder / 'deep'}").get("/runs")] == [HOSTILE, "one"]
    assert Tab(folder).plugin.is_active() and not Tab(folder / "base" / "nothing").plugin.is_active()
    assert roots_of("gs://bucket/logs", None) == {}


def test_a_map_holds_the_extremes_over_heads(folder: Path) -> None:
    found = Tab(folder).get("/map", run="base", series=LOGITS)
    series = read(folder / "base")[LOGITS]
    np.testing.assert_array_equal(unpacked(found["high"], "<f4", 4), series.values.max(axis=2).T)
    np.testing.assert_array_equal(unpacked(found["low"], "<f4", 4), series.values.min(axis=2).T)
    np.testing.assert_array_equal(unpacked(found["first"], "<f8")[0], series.steps)
    assert (found["least"], found["largest"]) == (series.values.max(axis=2).min(), series.values.max())
    assert found["floor"] == found["least"] and found["positive"] == 1.0
    assert (found["rows"], found["axis"], found["worse"]) == (4, "layer", "high")
    heads = Tab(folder).get("/map", run="base", series=LOGITS, row=2)
    np.testing.assert_array_equal(unpacked(heads["high"], "<f4", 4), series.values[:, 2].T)
    assert heads["axis"] == "head"


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=300, unique=True), st.integers(1, 50), st.data())
def test_bins_hold_every_sample_of_the_range_once(steps: list[int], columns: int, data: st.DataObject) -> None:
    at = np.array(sorted(steps))
    first = data.draw(st.integers(-5, 10_000))
    last = data.draw(st.integers(first, 10_010))
    edges = bins(at, first, last, columns)
    assert len(edges) - 1 <= columns and (np.diff(edges) > 0).all()
    inside = np.flatnonzero((at >= first) & (at <= last))
    np.testing.assert_array_equal(np.arange(edges[0], edges[-1]), inside)


@pytest.mark.parametrize("columns", [1, 7, 30, 400])
def test_no_peak_is_lost_and_what_is_no_number_is_told_apart(tmp_path: Path, columns: int) -> None:
    run = runs.healthy()
    logits = run.series[LOGITS].values
    logits[13, 1, 2], logits[20, 3], logits[7, 0, 0], logits[8, 2, 1] = 900.0, np.nan, np.inf, np.nan
    record(tmp_path, run).close()
    found = Tab(tmp_path).get("/map", run=tmp_path.name, series=LOGITS, columns=columns)
    high, bad = unpacked(found["high"], "<f4", 4), unpacked(found["bad"], "u1", 4)
    assert high[1].max() == 900.0 and found["largest"] == 900.0
    assert bad[0].sum() == 1 and not bad[1:].any()
    assert np.isnan(high[3]).sum() == (columns >= 30)
    assert not np.isnan(high[2]).any()


def test_what_was_counted_as_not_finite_is_no_lack_of_observation(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(Header(labels={"layer": ("a", "b")}))
    for step in range(4):
        rms, counts = np.ones(2), np.zeros(2)
        if step == 2:
            rms, counts = np.full(2, np.nan), np.array([5.0, 0.0])
        writer.sample(step, {"resid_rms/layer": rms, "nonfinite_count/layer": counts})
    writer.close()
    found = Tab(tmp_path).get("/map", run=tmp_path.name, series="resid_rms/layer")
    np.testing.assert_array_equal(unpacked(found["bad"], "u1", 2), [[0, 0, 1, 0], [0, 0, 0, 0]])


def test_a_growing_run_is_followed_by_what_was_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, tab = runs.healthy(), Tab(tmp_path)
    writer = record(tmp_path, run, until=100)
    before = tab.get("/map", run=tmp_path.name, series=LOGITS)
    version = tab.get("/runs")[0]["version"]
    read_bytes: list[int] = []
    plain = _files.scan
    monkeypatch.setattr(_files, "scan", lambda data: read_bytes.append(len(data)) or plain(data))
    append(writer, run, 100, 150)
    assert tab.get("/runs")[0]["version"] != version
    after = tab.get("/map", run=tmp_path.name, series=LOGITS)
    assert (before["columns"], after["columns"]) == (10, 15)
    arrays = (tmp_path / "stabilitylens" / "arrays.0.sl").stat().st_size
    assert sum(read_bytes) < arrays / 2
    np.testing.assert_array_equal(unpacked(after["high"], "<f4", 4), run.series[LOGITS].values[:15].max(axis=2).T.astype("f4"))
    curve = tab.get("/curve", run=tmp_path.name, series="loss")
    assert curve["points"] == 150 and unpacked(curve["x"], "<f8")[0, -1] == 149


def test_an_unfinished_record_is_read_when_it_is_whole(tmp_path: Path) -> None:
    run = runs.healthy()
    record(tmp_path / "whole", run).close()
    for source in sorted((tmp_path / "whole" / "stabilitylens").iterdir()):
        data = source.read_bytes()
        part = tmp_path / "part" / "stabilitylens" / source.name
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data[:len(data) * 2 // 3])
    recording = Recording(tmp_path / "part")
    assert 0 < len(recording.look().tracks[LOGITS].steps) < 30
    for source in sorted((tmp_path / "whole" / "stabilitylens").iterdir()):
        (tmp_path / "part" / "stabilitylens" / source.name).write_bytes(source.read_bytes())
    grown = recording.look()
    np.testing.assert_array_equal(grown.tracks["loss"].at(), read(tmp_path / "whole")["loss"].values)
    np.testing.assert_array_equal(grown.tracks[LOGITS].at(2, 1), read(tmp_path / "whole")[LOGITS].values[:, 2, 1])


def test_it_reads_what_the_reader_reads_of_resumed_runs(tmp_path: Path) -> None:
    run = runs.healthy()
    record(tmp_path, run, until=200).close()
    writer = RunWriter(tmp_path, resume_step=120)
    writer.header(run.header)
    append(writer, runs.logit_growth(), 120, 260)
    writer.close()
    mine, theirs = Recording(tmp_path).look(), read(tmp_path)
    assert set(mine.tracks) == set(theirs.series)
    for name, series in theirs.series.items():
        np.testing.assert_array_equal(mine.tracks[name].steps, series.steps)
        np.testing.assert_array_equal(np.concatenate(list(mine.tracks[name].chunks())), series.values)
    assert mine.superseded == [(120, 199)]


def test_verdicts_are_the_post_mortems(folder: Path) -> None:
    found = Tab(folder).get("/verdicts", run="base")
    fired = [f for f in found["findings"] if f["verdict"] == "fired"]
    growth = next(f for f in fired if f["code"] == "SL201")
    assert growth["target"] == {"series": LOGITS, "row": 2, "inner": 1, "steps": growth["where"]["steps"]}
    assert {f["verdict"] for f in found["findings"]} == {"fired", "clear", "not_evaluated"}
    parts = Tab(folder).get("/anatomy", run="base")["parts"]
    assert [p["severity"] for p in parts if p["kind"] == "attention"][2] == "error"
    assert all(p["severity"] is None for p in parts if p["kind"] == "feed_forward")


def test_a_click_finds_the_head_and_its_rules(folder: Path) -> None:
    cell = Tab(folder).get("/cell", run="base", series=LOGITS, row=2, near_first=280, near_last=290)
    assert (cell["inner"], cell["layer"], cell["label"]) == (1, 2, "blocks.2.attn")
    assert [(line["row"], line["inner"]) for line in cell["lines"]] == [(2, 1), (1, 1), (3, 1), (2, 0), (2, 2)]
    assert "SL201" in {rule["code"] for rule in cell["rules"]}
    series = read(folder / "base")[LOGITS]
    np.testing.assert_array_equal(unpacked(cell["lines"][0]["y"], "<f8")[0], series.values[:, 2, 1])


@pytest.mark.parametrize(("route", "parameters", "code"), [
    ("/about", {"run": "../base"}, 404), ("/about", {"run": "/etc"}, 404), ("/about", {}, 404),
    ("/map", {"run": "base", "series": "loss"}, 400), ("/map", {"run": "base", "series": "no"}, 404),
    ("/map", {"run": "base", "series": LOGITS, "row": 4}, 404), ("/map", {"run": "base", "series": LOGITS, "row": -1}, 400),
    ("/map", {"run": "base", "series": LOGITS, "columns": "many"}, 400), ("/map", {"run": "base", "series": LOGITS, "columns": 0}, 400),
    ("/map", {"run": "base", "series": LOGITS, "from": 1 << 63}, 400), ("/curve", {"run": "base", "series": LOGITS}, 400),
    ("/cell", {"run": "base", "series": LOGITS, "row": 1}, 400),
    ("/cell", {"run": "base", "series": LOGITS, "row": 1, "inner": 4, "near_first": 0, "near_last": 9}, 404),
])
def test_what_is_not_there_is_refused_with_a_sentence(folder: Path, route: str, parameters: dict[str, Any], code: int) -> None:
    response = Tab(folder).response(route, **parameters)
    assert response.status_code == code and response.mimetype == "text/plain" and b"Traceback" not in response.data


def test_ranges_beyond_the_run_are_empty_and_no_fault(folder: Path) -> None:
    tab = Tab(folder)
    assert tab.get("/map", run="base", series=LOGITS, **{"from": 5000, "to": 9000})["columns"] == 0
    assert tab.get("/map", run="base", series=LOGITS, **{"from": 200, "to": 100})["columns"] == 0
    assert tab.get("/curve", run="base", series="loss", **{"from": -9, "to": -1})["points"] == 0
    assert tab.get("/cell", run="base", series=LOGITS, row=0, near_first=9000, near_last=9001)["step"] == 290


def test_every_answer_says_nosniff_and_only_get_is_answered(folder: Path) -> None:
    tab = Tab(folder)
    for route in tab.apps:
        response = tab.response(route, run="base", series=LOGITS)
        assert response.headers["X-Content-Type-Options"] == "nosniff", route
        assert response.mimetype in ("application/json", "text/javascript", "text/css", "text/plain", "text/html")
    assert tab.response("/runs", method="POST").status_code == 405
    assert b"Plotly" in tab.response("/plotly.js").data[:20_000] or b"plotly" in tab.response("/plotly.js").data[:20_000]


def test_the_report_is_a_page_whose_scripts_alone_may_run(folder: Path) -> None:
    response = Tab(folder).response("/report", run="base")
    policy = response.headers["Content-Security-Policy"]
    assert b"attention-logit-growth" in response.data and "'sha256-" in policy and "'unsafe-inline'" not in policy.partition("script-src")[2]
    assert Tab(folder).response("/report", run="other").status_code == 404


def test_a_link_that_leads_in_a_circle_ends(tmp_path: Path) -> None:
    record(tmp_path / "one", runs.healthy(), until=20).close()
    os.symlink(tmp_path, tmp_path / "one" / "again")
    assert [run["name"] for run in Tab(tmp_path).get("/runs")] == ["one"]


def test_large_arrays_are_judged_on_a_part_of_their_samples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stabilitylens.dashboard import _verdicts

    monkeypatch.setattr(_verdicts, "WHOLE", 30 * 16 * 4 // 2)
    found = Tab(folder).get("/verdicts", run="base")
    assert found["thinned"][LOGITS] == 2 and "resid_rms/layer" not in found["thinned"]
    assert any(f["code"] == "SL201" and f["verdict"] == "fired" for f in found["findings"])


def test_an_array_of_many_axes_opens_on_its_inner_ones(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(Header(metrics={"share": MetricMeta("share", "1", ("layer head expert",), "a share")}))
    values = np.arange(24.0).reshape(2, 3, 4)
    writer.sample(0, {"share/layer_head_expert": values})
    writer.close()
    tab = Tab(tmp_path)
    assert tab.get("/map", run=tmp_path.name, series="share/layer_head_expert", row=1)["rows"] == 12
    cell = tab.get("/cell", run=tmp_path.name, series="share/layer_head_expert", row=1, near_first=0, near_last=0)
    assert cell["inner"] == 11 and cell["value"] == 23.0
