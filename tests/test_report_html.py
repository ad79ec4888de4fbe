"""The page: one file, nothing loaded, everything from a log escaped."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import numpy as np
import pytest

from stabilitylens._postmortem import postmortem
from stabilitylens.findings import Finding, Where
from stabilitylens.incidents import Incident
from stabilitylens.report import Report, Subject
from stabilitylens.run import Event
from tests import run_builders as runs

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&"


class Page(HTMLParser):
    """Every element with its attributes, the text of scripts, and all visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open != "style":
            self.text += data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def both() -> tuple[Report, str, Page]:
    report = postmortem(runs.logit_growth(), runs.healthy())
    text = report.to_html()
    return report, text, Page(text)


def test_the_page_loads_nothing_and_says_so_to_the_browser(both: tuple[Report, str, Page]) -> None:
    _, text, page = both
    assert not page.attributes("link") and not page.attributes("img") and not page.attributes("iframe")
    assert all("src" not in attrs for attrs in page.attributes("script"))
    policy = next(a["content"] for a in page.attributes("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy and "http" not in policy
    for script in page.scripts[1:]:
        assert f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert "@import" not in text.split("</style>")[0]
    assert len(text.encode()) < 6e6


def test_the_page_is_made_for_phones_and_for_the_dark(both: tuple[Report, str, Page]) -> None:
    _, text, page = both
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.attributes("meta")
    assert "prefers-color-scheme: dark" in text and "max-width: 700px" in text


def test_every_picture_in_the_data_has_its_place(both: tuple[Report, str, Page]) -> None:
    _, _, page = both
    data = json.loads(page.scripts[0])
    places = {attrs.get("id") for attrs in page.attributes("div")}
    assert {curve["id"] for curve in data["curves"]} <= places
    assert {f"{m['id']}-{i}" for m in data["maps"] for i in range(len(m["panels"]))} <= places
    assert {f"finding-{i}" for i, figure in enumerate(data["findings"]) if figure} <= places
    assert any(data["findings"]) and len(data["maps"]) == 7


def test_the_page_says_what_the_report_says(both: tuple[Report, str, Page]) -> None:
    report, _, page = both
    flat = " ".join(page.text.split())
    for finding in report.findings:
        assert finding.name in flat
        if finding.verdict == "not_evaluated":
            assert finding.lacks is not None and finding.lacks in flat
    links = {attrs["href"] for attrs in page.attributes("a")}
    for group in report.subjects[0].fired_by_rule():
        assert group[0].message.replace("`", "") in flat and set(group[0].sources) <= links
    for subject in report.subjects:
        assert subject.name in flat and str(subject.header.coverage) in flat


def test_the_tally_counts_rules_as_the_headline_does() -> None:
    places = [Finding("runs/base", "SL201", "attention-logit-growth", "fired", "error", where=Where(layer), message="high") for layer in range(3)]
    run = runs.logit_growth()
    given = Report("postmortem", (Subject(run.path, (*places, Finding("runs/base", "SL302", "epsilon-floor", "clear")), run=run),))
    assert "1 error, 1 clear, 0 not evaluated" in " ".join(Page(given.to_html()).text.split())


def test_what_comes_from_a_log_is_text_everywhere() -> None:
    run = runs.logit_growth(HOSTILE)
    run.series[HOSTILE] = replace(run["loss"], name=HOSTILE, unit=HOSTILE, definition=HOSTILE)
    run.series[f"{HOSTILE}/layer"] = replace(
        run["resid_rms"], name=f"{HOSTILE}/layer", labels={"layer": (HOSTILE,) * 4}, definition=HOSTILE
    )
    run.notes.append(HOSTILE)
    run.events.append(Event(1, HOSTILE, HOSTILE))
    where = Where(2, HOSTILE, 1, (3, 4))
    finding = Finding(
        HOSTILE, "SL201", HOSTILE, "fired", "error", 1.0, where, 1.0, 2.0, HOSTILE, HOSTILE, ("javascript:alert(3)",)
    )
    lacking = Finding(HOSTILE, "SL202", HOSTILE, "not_evaluated", lacks=HOSTILE)
    incident = Incident(
        "spike", "loss", 5, 6, 5, 6, 5, 5, 1, 9.0, "fast", 1, "warning", 0.9, HOSTILE
    )
    report = Report("postmortem", (Subject(HOSTILE, (finding, lacking), run.header.anatomy, None, run, (incident,)),))
    page = Page(report.to_html())
    assert len(page.scripts) == 3
    assert not page.attributes("img") and not page.attributes("a")
    assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]
    assert json.loads(page.scripts[0])["runs"] == [HOSTILE]


def test_a_million_points_fit_in_six_megabytes() -> None:
    rng = np.random.default_rng(0)
    n = 1_000_000
    series = [runs.scalar(name, rng.random(n)) for name in ("loss", "grad_norm")]
    run = replace(runs.healthy(), series={s.name: s for s in series} | {
        f"m{i}/layer": runs.Series(f"m{i}/layer", np.arange(2000), rng.random((2000, 80)), ("layer",)) for i in range(12)
    })
    run["loss"].values[543_210] = 77.0
    report = Report("postmortem", (Subject(run.path, (), run=run),))
    page = report.to_html()
    assert len(page.encode()) < 6e6
    (loss,) = [curve for curve in json.loads(Page(page).scripts[0])["curves"] if curve["title"] == "loss"]
    assert 77.0 in [y for line in loss["lines"] for y in line["y"]]


def test_incidents_stand_under_the_name_of_their_own_run() -> None:
    incident = Incident("spike", "loss", 5, 6, 5, 6, 5, 5, 1, 9.0, "fast", 1, "warning", 0.9, "The second run's.")
    first, second = (replace(runs.healthy(), path=path) for path in ("runs/calm", "runs/spiky"))
    subjects = (Subject(first.path, (), run=first), Subject(second.path, (), run=second, incidents=(incident,)))
    page = Report("postmortem", subjects).to_html()
    section = page[page.index("<h2>Incidents</h2>") : page.index("The second run&#39;s.")]
    assert "spiky" in section and "calm" not in section


def test_a_report_without_pictures_has_no_script() -> None:
    finding = Finding("Model", "SL101", "missing-qk-norm", "fired", "warning", message="no norm on queries")
    text = Report("audit", (Subject("Model", (finding,), runs.header().anatomy, runs.header().recipe),)).to_html()
    assert not Page(text).scripts and "script-src &#39;none&#39;" in text
    assert "no norm on queries" in text and "layernorm" in text and len(text) < 40_000
