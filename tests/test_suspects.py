"""Every suspect comes first where it is the cause, and stays low where it is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stabilitylens._postmortem import postmortem
from stabilitylens.explain import explain
from stabilitylens.explanation import contexts
from stabilitylens.header import Header
from stabilitylens.report import Report, Subject
from stabilitylens.run import Event, Series
from stabilitylens.suspects import SUSPECTS, Opinion, Scales, judge_case, suspects_of
from tests import run_builders as runs
from tests import suspect_cases as cases
from tests.test_report_contract import documented


def ranked(opinions: dict[str, Opinion]) -> list[str]:
    return sorted(opinions, key=lambda name: -opinions[name].score)


def test_every_suspect_has_cases_and_a_file_of_its_name() -> None:
    folder = Path(__file__).parent.parent / "stabilitylens" / "suspects"
    assert {m.name for m in SUSPECTS} == set(cases.CASES)
    assert sorted(m.name.replace("-", "_") for m in SUSPECTS) == sorted(f.stem for f in folder.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", cases.CASES)
def test_it_comes_first_where_it_is_the_cause(name: str) -> None:
    opinions = judge_case(cases.CASES[name][0]().case)
    assert ranked(opinions)[0] == name, {n: opinions[n] for n in ranked(opinions)[:3]}
    assert opinions[name].score > 0.3 and opinions[name].evidence_for and opinions[name].experiment
    assert not opinions[name].excluded


@pytest.mark.parametrize("name", cases.CASES)
def test_it_stays_low_where_it_is_not(name: str) -> None:
    opinions = judge_case(cases.CASES[name][1]().case)
    assert ranked(opinions)[0] != name and opinions[name].score < 0.15 and opinions[name].evidence_against


@pytest.mark.parametrize("name", cases.CASES)
def test_every_opinion_is_complete(name: str) -> None:
    for build in cases.CASES[name]:
        for opinion in judge_case(build().case).values():
            assert 0 <= opinion.score <= 1 and opinion.experiment.endswith((".", "?"))
            assert all(text and "None" not in text and not text.endswith(": ") for text in (*opinion.evidence_for, *opinion.evidence_against))


@pytest.mark.parametrize("name", cases.CASES)
def test_its_page_says_what_speaks_for_and_against_it_and_what_settles_it(name: str) -> None:
    page = explain(name)
    own = page[page.index(f"# {name}\n\n*suspect*") :]
    assert re.findall(r"^## (.+)", own, re.M) == ["Speaks for it", "Speaks against it", "Evidence", "Settle it", "Remedy"]
    assert own.splitlines()[4].endswith(".") and "\n    " not in own


def leapt_with(lr: np.ndarray) -> cases.Made:
    """A divergence that began two steps after something happened to the learning rate, in a log without layers."""
    out = cases.made("divergence", rise=60, width=101, recovery="none", severity="error").scalar("lr", lr)
    out.run.series = {name: out.run.series[name] for name in ("loss", "lr", "grad_norm")}
    out.run.series["grad_norm"].values[cases.AT - 2 :] *= 8
    out.run.header = Header()
    return out


def test_a_step_of_the_learning_rate_comes_first_in_a_plain_log() -> None:
    opinions = judge_case(leapt_with(cases.from_300(3e-4, 9e-3, -2)).case)
    assert ranked(opinions)[0] == "learning-rate" and opinions["learning-rate"].score > 0.8
    assert opinions["unknown"].score < 0.15 and opinions["gradient-accumulation"].score < 0.15


def test_a_learning_rate_of_zero_is_not_too_high() -> None:
    opinion = judge_case(leapt_with(np.zeros(cases.N)).case)["learning-rate"]
    assert opinion.score < 0.05 and opinion.evidence_for[:1] != ("lr was 0, near the highest of the run so far",)
    assert "lr was 0: no weight could move" in opinion.evidence_against


def test_steps_skipped_at_a_loss_scale_are_an_overflow() -> None:
    made = cases.skipped().scalar("loss_scale", np.full(cases.N, 32768.0)).recipe(precision=None)
    opinions = judge_case(made.case)
    assert ranked(opinions)[:2] == ["all-steps-skipped", "fp16-overflow"] and opinions["fp16-overflow"].score > 0.6
    assert any("at a loss scale of 32768" in text for text in opinions["fp16-overflow"].evidence_for)


def test_incidents_at_one_interval_are_the_order_of_the_data() -> None:
    run = cases.made().run
    loss = 3 * cases.noise(0)
    starts = range(40, 400, 40)
    for start in starts:
        loss[start - 1 : start + 3] += 1
    run.series = {"loss": Series("loss", cases.STEPS, loss)}
    incidents = tuple(replace(cases.made().incident, start_step=s, peak_step=s + 1, end_step=s + 3, start_index=s - 1, peak_index=s, end_index=s + 2) for s in starts)
    entries = suspects_of(Subject(run.path, (), run=run, incidents=incidents, contexts=tuple(contexts(run, incidents))))
    assert entries[0]["name"] == "data-order" and "multiples of 40 steps" in entries[0]["evidence_for"][0]
    assert next(entry for entry in entries if entry["name"] == "bad-batch")["score"] < 0.3


def test_suspects_are_of_the_incident_that_the_headline_names() -> None:
    """A small spike that nothing explains does not put unknown before the cause of the gravest."""
    made = cases.learning_rate()
    small = replace(made.incident, start_step=100, peak_step=101, end_step=105, start_index=99, peak_index=100, end_index=104, magnitude=5.0, cost_steps=5)
    incidents = (small, made.incident)
    entries = suspects_of(Subject("runs/two", (), run=made.run, incidents=incidents, contexts=tuple(contexts(made.run, incidents))))
    assert entries[0]["name"] == "learning-rate" and all(entry["incident"] == 1 for entry in entries)


def test_skipping_that_never_stopped_is_told_from_where_it_began() -> None:
    run = runs.healthy()
    run.events = [Event(step, "step_skipped") for step in range(runs.STEPS)]
    (finding,) = (f for f in postmortem(run).findings if f.code == "SL503")
    assert finding.where.steps is not None and finding.where.steps[0] == 0 and "first at step 0" in finding.message
    run.events = [event for event in run.events if event.step != 60]
    (finding,) = (f for f in postmortem(run).findings if f.code == "SL503")
    assert "first at step 61" in finding.message


def test_scales_add_log_odds() -> None:
    scales = Scales(0.5)
    scales.pro(2.0, "for")
    scales.con(2.0, "against")
    scales.pro(9.0, "never", when=[])
    opinion = scales.opinion("try it.")
    assert opinion.score == 0.5 and opinion.evidence_for == ("for",) and opinion.evidence_against == ("against",)
    certain = Scales(0.1)
    certain.con_first(4.0, ["first", "second"], "seen: ")
    assert certain.opinion("").excluded and certain.opinion("").evidence_against == ("seen: first",)
    weak = Scales(0.02)
    weak.con(0.5, "a hint")
    assert not weak.opinion("").excluded


def test_unknown_names_what_is_excluded() -> None:
    opinion = judge_case(cases.unexplained().case)["unknown"]
    (told,) = (text for text in opinion.evidence_for if text.startswith("excluded: "))
    assert {"fp16-overflow", "masked-rows", "stale-second-moment"} <= set(told.removeprefix("excluded: ").split(", "))


def test_what_is_excluded_is_said_once() -> None:
    for made in (cases.unexplained(), cases.learning_rate()):
        report = report_of(made)
        assert [form.lower().count("excluded: ") for form in (str(report), report.to_html())] == [1, 1]


def report_of(made: cases.Made) -> Report:
    subject = Subject(made.run.path, made.findings, run=made.run, incidents=(made.incident,), contexts=(made.case.context,))
    return Report("postmortem", (subject,), suspects_of(subject))


def test_the_report_has_them_sorted_with_the_documented_keys() -> None:
    report = report_of(cases.learning_rate())
    data = json.loads(report.to_json(), parse_constant=pytest.fail)
    scores = [entry["score"] for entry in data["suspects"]]
    assert scores == sorted(scores, reverse=True) and data["suspects"][0]["name"] == "learning-rate"
    assert len(scores) == len(SUSPECTS) and all(set(entry) == documented("A suspect") for entry in data["suspects"])
    context = data["runs"][0]["incidents"][0]["context"]
    assert set(context) == documented("The context of an incident") and data["suspects"][0]["incidents"] == [0]


def test_movements_have_the_documented_keys() -> None:
    data = json.loads(report_of(cases.stale()).to_json())
    moved = data["runs"][0]["incidents"][0]["context"]["moved"]
    assert moved and all(set(movement) == documented("A movement") for movement in moved)
    assert moved[0]["series"] == "adam_rms/layer" and moved[0]["lead"] == 4 and moved[0]["where"]["layer"] == 0


def test_a_run_without_incidents_has_no_suspects() -> None:
    assert postmortem(runs.healthy()).suspects == []


def test_a_log_cannot_smuggle_markup_into_the_page() -> None:
    made = cases.bad_batch()
    made.run.notes.append("<script>alert(1)</script>")
    page = report_of(made).to_html()
    assert "<script>alert(1)" not in page and "What would settle it" in page


def test_the_suspects_of_several_runs_are_told_apart() -> None:
    subjects = [report_of(build()).subjects[0] for build in (cases.learning_rate, cases.bad_batch)]
    subjects[1] = Subject("runs/other", run=subjects[1].run, findings=(), incidents=subjects[1].incidents, contexts=subjects[1].contexts)
    report = Report("postmortem", tuple(subjects), [entry for subject in subjects for entry in suspects_of(subject)])
    text = str(report)
    first, second = text.index("learning-rate  of the"), text.index("bad-batch  of the")
    assert first < text.index("runs/other") < second
