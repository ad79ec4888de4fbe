"""Every incident up close, the gravest first; many incidents and many runs stay readable."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from stabilitylens.explanation import contexts
from stabilitylens.gravity import gravest_first
from stabilitylens.incidents import Incident
from stabilitylens.report import Report, Subject
from stabilitylens.reports._figures import figures
from stabilitylens.reports._windows import DRAWN, windows
from stabilitylens.run import Run, Series
from tests import run_builders as runs
from tests.test_report_html import HOSTILE, Page

N = 5000


def happened(start: int, width: int = 5, metric: str = "loss", severity: str = "warning", magnitude: float = 20.0, kind: str = "spike") -> Incident:
    end = start + width - 1
    return Incident(kind, metric, start, end, start, end, start + 1, start + 1, width, magnitude, "fast", width, severity, 1.0, f"{metric} rose")


def subject(*incidents: Incident, name: str = "runs/long", n: int = N, layers: bool = False) -> Subject:
    rng = np.random.default_rng(0)
    loss, norm = 3 * np.exp(0.01 * rng.normal(size=n)), np.exp(0.1 * rng.normal(size=n))
    for incident in incidents:
        (loss if incident.metric == "loss" else norm)[incident.start_index : incident.end_index + 1] += 5
        loss[incident.peak_index] += 1
    series = {"loss": runs.scalar("loss", loss), "grad_norm": runs.scalar("grad_norm", norm)}
    if layers:
        values = np.exp(0.05 * rng.normal(size=(n, 4)))
        values[incidents[0].start_index - 3 :, 2] *= 8
        series["update_rms/layer"] = Series("update_rms/layer", np.arange(n), values, ("layer",))
    run = Run(name, series)
    return Subject(name, (), run=run, incidents=incidents, contexts=tuple(contexts(run, incidents)))


def test_a_window_shows_the_steps_before_and_after_with_start_peak_and_end() -> None:
    incident = happened(2000)
    (window,), others = windows([subject(incident)])
    (line,) = window["panels"][0]["lines"]
    assert others == 0 and (window["from"], window["to"]) == (1960, 2044)
    assert line["x"] == list(range(1960, 2045)) and window["on"] == 0
    band = window["band"]
    assert (band["from"], band["peak"], band["to"]) == (2000, 2001, 2004)
    assert band["y"] == max(line["y"]) == line["y"][line["x"].index(2001)]


def test_what_moved_first_is_drawn_at_its_place_under_the_loss() -> None:
    given = subject(happened(2000), layers=True)
    (window,), _ = windows([given])
    loss, moved = window["panels"]
    assert (loss["title"], moved["title"]) == ("loss", "update_rms, layer 2")
    (line,) = moved["lines"]
    assert given.run is not None
    at = np.array(line["x"])
    assert np.allclose(np.array(line["y"], dtype=float), given.run["update_rms"].values[at, 2], rtol=1e-3)


def test_an_incident_of_another_series_is_drawn_with_the_loss_beside_it() -> None:
    (window,), _ = windows([subject(happened(2000, metric="grad_norm"))])
    assert [panel["title"] for panel in window["panels"]][:2] == ["grad_norm", "loss"] and window["on"] == 0
    skipped = replace(happened(2000), metric="steps_skipped", kind="steps_skipped")
    (window,), _ = windows([subject(skipped)])
    assert window["panels"][0]["title"] == "loss" and window["on"] is None


@pytest.mark.parametrize(("start", "width"), [(0, 3), (N - 3, 3), (0, N)])
def test_a_window_ends_with_the_record(start: int, width: int) -> None:
    incident = replace(happened(start, width), peak_step=start, peak_index=start)
    (window,), _ = windows([subject(incident)])
    assert 0 <= window["from"] <= start and start + width - 1 <= window["to"] <= N - 1
    assert max(map(len, (line["x"] for panel in window["panels"] for line in panel["lines"]))) <= 700


def test_a_value_that_is_not_finite_has_a_mark_and_no_height() -> None:
    given = subject(happened(2000, kind="nonfinite"))
    assert given.run is not None
    given.run.series["loss"].values[2000:2005] = np.nan
    (window,), _ = windows([given])
    assert window["band"]["y"] is None and window["panels"][0]["lines"][0]["broken"] == [2000, 2001, 2002, 2003, 2004]


def test_of_many_incidents_the_gravest_dozen_is_drawn_and_the_page_says_so() -> None:
    many = [happened(50 * (i + 1), magnitude=5 + i) for i in range(60)]
    report = Report("postmortem", (subject(*many),))
    drawn = figures(report, [])["windows"]
    assert [each["band"]["from"] for each in drawn] == [50 * (60 - i) for i in range(DRAWN)]
    page = Page(report.to_html())
    flat = " ".join(page.text.split())
    assert "gravest 12 incidents; 48 more are in the tables" in flat and "The gravest 50 of 60" in flat
    places = {attrs.get("id") for attrs in page.attributes("div")}
    assert {each["id"] for each in drawn} <= places


def test_windows_of_a_long_run_do_not_lose_the_peak_and_stay_small() -> None:
    long = happened(1000, 3000)
    (window,), _ = windows([subject(long)])
    values = window["panels"][0]["lines"][0]["y"]
    assert len(values) <= 600 and max(v for v in values if v is not None) == window["band"]["y"]


def test_markers_of_a_thinned_curve_sit_at_their_own_values() -> None:
    given = subject(happened(60_001, metric="grad_norm"), happened(90_000), n=200_000)
    assert given.run is not None
    for curve in figures(Report("postmortem", (given,)), [])["curves"]:
        for band in curve["bands"]:
            assert band["y"] == pytest.approx(given.run.series[curve["title"]].values[band["peak"]], rel=1e-3)


def test_names_in_a_window_are_text() -> None:
    given = subject(replace(happened(2000), explanation=HOSTILE))
    page = Page(Report("postmortem", (given,)).to_html())
    assert len(page.scripts) == 3 and not page.attributes("img")


SMALL, BIG = happened(300, 6, magnitude=15.0), happened(700, 6, magnitude=69.0)


@pytest.mark.parametrize("order", [(SMALL, BIG), (replace(BIG, start_step=300, peak_step=301), replace(SMALL, start_step=700, peak_step=701))])
def test_headline_and_lists_begin_with_the_gravest(order: tuple[Incident, ...]) -> None:
    worst = max(order, key=lambda i: i.magnitude)
    told = tuple(replace(i, explanation=f"loss rose, {i.magnitude:g} sigma") for i in order)
    report = Report("postmortem", (subject(*told),))
    assert report.verdict.startswith("loss rose, 69 sigma;") and report.verdict.endswith("spike of loss at step " + str(min(order, key=lambda i: i.magnitude).start_step))
    for form in ("text", "html", "line"):
        stream = io.StringIO()
        report.write(stream, form)
        text = Page(stream.getvalue()).text if form == "html" else stream.getvalue()
        told_in = text.partition("what happened")[2] or text
        assert told_in.index("69 sigma") < told_in.index("15 sigma"), form
    assert gravest_first(order)[0] is worst
    (run,) = json.loads(report.to_json())["runs"]
    assert [i["start_step"] for i in run["incidents"]] == [300, 700]


def test_what_was_lost_counts_with_how_far_it_went() -> None:
    blip, slow = happened(100, 2, magnitude=60.0), happened(200, 400, magnitude=14.0)
    nan = happened(700, 1, magnitude=float("nan"), kind="nonfinite", severity="error")
    assert gravest_first([blip, slow, nan]) == [nan, slow, blip]
    assert gravest_first([happened(1, metric="grad_norm", magnitude=500.0), blip])[0] is blip


def test_many_runs_are_told_in_an_overview_and_what_they_share_once() -> None:
    calm = [subject(name=f"runs/{i}") for i in range(8)]
    bad = subject(happened(2000), name="runs/bad")
    report = Report("postmortem", (*calm, bad))
    text, page = str(report), Page(report.to_html())
    assert text.startswith("9 runs, the gravest first") and text.index("runs/bad") < text.index("runs/0")
    assert text.count("is as in runs/0.") == 8
    assert "3 more runs, the gravest first" in " ".join(page.text.split()) and page.text.count("every rule had what it needs") == 1
    assert len(report.to_html()) < 6e6


def test_the_first_screen_names_the_first_suspect() -> None:
    incident = happened(2000)
    likely = {
        "run": "runs/long", "name": "bad-batch", "score": 0.85, "excluded": False, "incident": 0, "incidents": [0],
        "evidence_for": ["it is one"], "evidence_against": [], "experiment": "Look.", "summary": "A batch was bad.",
    }  # fmt: skip
    page = Report("postmortem", (subject(incident),), [likely]).to_html()
    header = page[page.index("<header>") : page.index("</header>")]
    assert '<a href="#suspect-0-bad-batch">bad-batch</a>, 0.85' in header
    assert "Most likely" not in Report("postmortem", (subject(incident),), []).to_html()
