"""Whatever a series holds, the post-mortem comes through; and a part of it that fails costs only itself."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from markupsafe import Markup

from stabilitylens._postmortem import postmortem
from stabilitylens.explanation import contexts
from stabilitylens.guard import DEBUG
from stabilitylens.header import Header
from stabilitylens.incidents import DETECTORS, Incident, detect
from stabilitylens.incidents._incident import Kind
from stabilitylens.recipe import Recipe
from stabilitylens.report import Report, Subject
from stabilitylens.rules import RULES
from stabilitylens.run import Event, Run, Series
from stabilitylens.suspects import SUSPECTS, suspects_of
from tests import run_builders as runs

FORMS = ("text", "html", "json", "line", "sarif")
SCALARS = ("loss", "grad_norm", "lr", "loss_scale", "epoch", "tokens", "step_time", "eval_loss", "grad_norm_clipped")
LAYERED = ("adam_rms", "update_rms", "resid_absmax", "max_attn_logit", "masked_rows", "param_norm")
#: what breaks a division, a logarithm or a factor
#: a failing example is shown as it is: making it smaller takes minutes, for each try is a whole report
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
NASTY = st.sampled_from([0.0, -0.0, -1.0, 1.0, 2.5, 5e-324, 1e-300, 1e308, -1e308, np.nan, np.inf, -np.inf])
VALUES = st.one_of(NASTY, st.floats(allow_nan=True, allow_infinity=True), st.floats(0.1, 10.0))


@st.composite
def shapes(draw: st.DrawFn, n: int, places: int = 0) -> np.ndarray:
    """Constant, zero, stepping, or any values; of ``n`` points, and so many places."""
    size = (n, places) if places else (n,)
    kind = draw(st.sampled_from(["constant", "step", "any", "broken"]))
    if kind == "any":
        return draw(arrays(np.float64, size, elements=VALUES))
    out = np.full(size, draw(VALUES))
    if kind != "constant" and n:
        out[draw(st.integers(0, n - 1)) :] = draw(NASTY)
    if kind == "broken" and n:
        out[draw(st.integers(0, n - 1))] = draw(NASTY)
    return out


@st.composite
def records(draw: st.DrawFn) -> Run:
    """A run of 1 to 90 points (a series may be empty), with odd scalars, layers, events and recipe."""
    n = draw(st.sampled_from([1, 2, 9, 40, 90]))
    names = draw(st.lists(st.sampled_from(SCALARS), unique=True, min_size=1))
    steps = np.cumsum(draw(arrays(np.int64, n, elements=st.sampled_from([1, 1, 10, 10**6])))) - 1
    series = {}
    for name in names:
        length = draw(st.sampled_from([n, n, n, n // 2, 0]))
        series[name] = Series(name, steps[:length], draw(shapes(length)))
    for name in draw(st.lists(st.sampled_from(LAYERED), unique=True, max_size=2)):
        series[f"{name}/layer"] = Series(f"{name}/layer", steps, draw(shapes(n, 4)), ("layer",))
    at = st.sampled_from(steps.tolist())
    events = draw(st.lists(st.builds(Event, at, st.sampled_from(["step_skipped", "resume", "incident_dumped"])), max_size=3))
    recipe = Recipe("AdamW", beta2=draw(st.sampled_from([None, 0.0, 0.95, 0.999, 1.0, 2.0])), grad_accumulation=draw(st.sampled_from([None, 0, 1, 4])))
    return Run("runs/odd", series, Header(recipe=draw(st.sampled_from([None, recipe]))), events=sorted(events, key=lambda e: e.step))


@pytest.fixture(autouse=True, scope="module")
def _loud() -> Any:
    """Faults are raised, so that hypothesis shows them with their traceback; pages go without plotly, which is most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DEBUG, "1")
        patch.setattr("stabilitylens.reports.html.scripts", lambda: [Markup("")])
        yield


def all_forms(report: Report) -> None:
    for form in FORMS:
        stream = io.StringIO()
        report.write(stream, form)
        assert stream.getvalue()
        if form == "json":
            json.loads(stream.getvalue(), parse_constant=pytest.fail)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=30, deadline=None, phases=PHASES)
@given(records())
def test_no_series_breaks_the_post_mortem(run: Run) -> None:
    all_forms(postmortem(run))


@st.composite
def incidents_of(draw: st.DrawFn, run: Run) -> Incident:
    """Any incident on one of a run's scalars that has points."""
    names = [name for name, series in run.series.items() if not series.axes and len(series)]
    series = run.series[draw(st.sampled_from(names))]
    first, peak, last = sorted(draw(st.lists(st.integers(0, len(series) - 1), min_size=3, max_size=3)))
    return Incident(
        draw(st.sampled_from(Kind.__args__)), series.name, *(int(series.steps[i]) for i in (first, last)), first, last,
        int(series.steps[peak]), peak, last - first + 1, draw(st.sampled_from([np.nan, 0.0, -3.0, 30.0, np.inf])),
        draw(st.sampled_from(["fast", "slow", "partial", "none", None])), last - first, draw(st.sampled_from(["info", "warning", "error"])),
        1.0, "it happened",
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=60, deadline=None, phases=PHASES)
@given(st.data())
def test_every_suspect_weighs_any_incident_on_any_series(data: st.DataObject) -> None:
    run = data.draw(records().filter(lambda run: any(not s.axes and len(s) for s in run.series.values())))
    incidents = tuple(data.draw(st.lists(incidents_of(run), min_size=1, max_size=4)))
    subject = Subject(run.path, (), None, run.header.recipe, run, incidents, contexts=tuple(contexts(run, incidents)))
    entries = suspects_of(subject)
    assert all(0 <= entry["score"] <= 1 for entry in entries)
    all_forms(Report("postmortem", (subject,), entries))


def test_a_loss_that_begins_at_zero_is_explained() -> None:
    """As of reinforcement learning, whose loss is a small multiple of a divergence that is zero at first."""
    rng = np.random.default_rng(0)
    loss = 0.04 * 0.02 * (1 - np.exp(-np.arange(300) / 80)) * np.exp(0.25 * rng.standard_normal(300))
    loss[200:220] += 0.05
    report = postmortem(Run("runs/grpo", {"loss": Series("loss", np.arange(300), loss)}))
    assert report.suspects and not report.subjects[0].failures


def broken(*_: Any) -> Any:
    raise ZeroDivisionError("float division by zero")


def spiky() -> Run:
    run = runs.healthy()
    run.series["loss"].values[150:154] += 6
    return run


@pytest.mark.parametrize(
    ("registry", "name", "what"),
    [(SUSPECTS, "bad-batch", "the suspect bad-batch"), (DETECTORS, "drift", "the detector drift"), (RULES, "SL201", "the rule SL201")],
)
def test_one_that_fails_costs_only_itself_and_the_report_says_so(registry, name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEBUG)
    whole, field = postmortem(spiky()), "weigh" if registry is SUSPECTS else "find" if registry is DETECTORS else "check"
    monkeypatch.setitem(registry._members, name, replace(registry[name], **{field: broken}))
    report = postmortem(spiky())
    (failure,) = report.subjects[0].failures
    assert failure.startswith(f"A fault of our own in {what}") and "ZeroDivisionError: float division by zero" in failure and DEBUG in failure
    assert report.incidents == whole.incidents
    kept = {entry["name"]: entry["score"] for entry in report.suspects if entry["name"] not in (name, "unknown")}
    assert kept and kept == {entry["name"]: entry["score"] for entry in whole.suspects if entry["name"] in kept}
    assert [f.code for f in report.findings if f.code != name] == [f.code for f in whole.findings if f.code != name]
    for form in FORMS:
        stream = io.StringIO()
        report.write(stream, form)
        assert what in " ".join(stream.getvalue().split()), form


def test_a_fault_is_raised_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUSPECTS._members, "bad-batch", replace(SUSPECTS["bad-batch"], weigh=broken))
    with pytest.raises(ZeroDivisionError):
        postmortem(spiky())


def test_surroundings_that_fail_leave_the_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEBUG)
    monkeypatch.setattr("stabilitylens.explanation._context.movements", broken)
    report = postmortem(spiky())
    assert report.incidents == detect(spiky()) and report.suspects
    assert "the surroundings of the" in report.subjects[0].failures[0]
