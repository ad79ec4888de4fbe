"""The report as plain data, as JSON and as text."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stabilitylens._postmortem import postmortem
from stabilitylens.findings import Finding, Where
from stabilitylens.incidents import Incident
from stabilitylens.report import Report, Subject
from stabilitylens.run import Event, Run, Series
from tests import run_builders as runs

LOGITS = Finding(
    "runs/base", "SL201", "attention-logit-growth", "fired", "error", 0.9, Where(2, "blocks.2", 1, (120, 290)),
    22_000.0, 100.0, "attention logits reached 2.2e4 in layer 2 head 1 by step 290", "Normalise queries and keys.",
    ("https://arxiv.org/abs/2309.14322",),
)
ENTROPY = replace(LOGITS, code="SL202", name="attention-entropy-collapse", severity="warning")
CLEAR = Finding("runs/base", "SL302", "epsilon-floor", "clear")
MISSING = Finding("runs/base", "SL501", "output-logit-drift", "not_evaluated", lacks="log_z was not recorded")
SPIKE = Incident(
    "spike", "loss", 100, 104, 100, 104, 101, 101, 2, 31.0, "fast", 5, "warning", 0.9, "loss rose from 3 to 9"
)
NAN = replace(SPIKE, kind="nonfinite", start_step=150, severity="error", explanation="loss became NaN at step 150.")
MEASURED = f"{LOGITS.message}, while the loss looked unremarkable; 2 other rules fired"


def report(*findings: Finding, incidents: tuple[Incident, ...] = ()) -> Report:
    run = runs.logit_growth()
    return Report("postmortem", (Subject(run.path, findings, run.header.anatomy, run.header.recipe, run, incidents),))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (report(CLEAR, MISSING), "nothing fired: 1 rule clear, 1 not evaluated"),
        (report(MISSING), "not evaluated: none of 1 rule had what it needs"),
        (report(CLEAR, incidents=(SPIKE,)), "loss rose from 3 to 9; no rule fired: 1 rule clear, 0 not evaluated"),
        (report(LOGITS, CLEAR), f"{LOGITS.message}, while the loss looked unremarkable"),
        (report(LOGITS, ENTROPY, CLEAR), f"{LOGITS.message}, while the loss looked unremarkable; 1 other rule fired"),
        (
            report(replace(LOGITS, severity="info"), CLEAR),
            f"no warning and no error: 1 rule clear, 0 not evaluated; noted that {LOGITS.message}",
        ),
        (report(ENTROPY, incidents=(SPIKE, NAN)), "loss became NaN at step 150; 1 rule fired; spike of loss at step 100"),
        (
            report(replace(ENTROPY, severity="info"), incidents=(replace(NAN, severity="info"),) * 2),
            "no warning and no error: 0 rules clear, 0 not evaluated; "
            f"noted that {ENTROPY.message}; nonfinite of loss (2 times)",
        ),
        (report(replace(LOGITS, code="SL101", message="bare", where=Where()), ENTROPY, LOGITS, CLEAR), MEASURED),
        (report(LOGITS, incidents=(SPIKE,)), f"{LOGITS.message}; spike of loss at step 100"),
    ],
    ids=["clear", "blind", "incident", "fired", "two-fired", "info", "worse-incident", "all-info", "measured-first", "fired-and-incident"],
)
def test_the_headline_is_one_true_sentence(given: Report, sentence: str) -> None:
    assert given.verdict == sentence


def test_several_runs_are_each_named_in_the_headline() -> None:
    assert postmortem(runs.logit_growth("a"), runs.healthy("b")).verdict.startswith("a: ")
    assert "; b: " in postmortem(runs.logit_growth("a"), runs.healthy("b")).verdict


def test_json_has_the_keys_of_the_contract() -> None:
    data = json.loads(report(LOGITS, CLEAR, MISSING, incidents=(SPIKE,)).to_json())
    assert data["schema"] == 1
    assert data["suspects"] == []
    (run,) = data["runs"]
    assert (run["path"], run["format"], run["points"], run["loss_key"]) == ("runs/base", "recording", 300, "loss")
    assert "max_attn_logit/attention_head" in run["series"]
    assert run["incidents"] == [SPIKE.to_dict() | {"context": None}]
    assert data["findings"] == [LOGITS.to_dict(), CLEAR.to_dict(), MISSING.to_dict()]
    assert set(data["findings"][0]) == {
        "run", "code", "name", "verdict", "severity", "confidence", "where", "observed", "threshold", "message",
        "remedy", "sources", "lacks",
    }
    assert data["findings"][0]["where"] == {"layer": 2, "layer_name": "blocks.2", "head": 1, "steps": [120, 290]}


def test_json_takes_numpy_and_turns_what_is_not_finite_into_null() -> None:
    odd = replace(LOGITS, observed=np.float32(np.inf), threshold=math.nan, where=Where(np.int64(2)))
    endless = replace(SPIKE, magnitude=math.nan, start_step=np.int64(3))
    data = json.loads(report(odd, incidents=(endless,)).to_json(), parse_constant=pytest.fail)
    assert data["findings"][0]["observed"] is None and data["findings"][0]["threshold"] is None
    assert data["findings"][0]["where"] == {"layer": 2}
    assert data["runs"][0]["incidents"][0]["magnitude"] is None
    assert data["runs"][0]["incidents"][0]["start_step"] == 3


def test_a_run_without_a_loss_has_no_points() -> None:
    run = runs.logit_growth()
    del run.series["loss"]
    (described,) = json.loads(postmortem(run).to_json())["runs"]
    assert (described["points"], described["loss_key"]) == (0, None)


def test_what_fails_on_a_severity() -> None:
    assert report(LOGITS).at_or_above("error")
    assert not report(ENTROPY, CLEAR, MISSING).at_or_above("error")
    assert report(ENTROPY).at_or_above("warning")
    assert report(CLEAR, incidents=(SPIKE,)).at_or_above("warning")
    assert not report(CLEAR, MISSING).at_or_above("info")


def test_text_says_everything_and_has_no_colour() -> None:
    text = str(report(LOGITS, CLEAR, MISSING, incidents=(SPIKE,)))
    flat = " ".join(text.split())
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    for said in (
        LOGITS.message, "SL201 attention-logit-growth", "layer 2, head 1, steps 120 to 290", LOGITS.remedy,
        *LOGITS.sources, "observed 22,000, threshold 100", SPIKE.explanation, "epsilon-floor",
        "log_z was not recorded: output-logit-drift", "48 of 48 trainable parameters", "not observed: grad_norm",
    ):
        assert said.lower() in flat.lower(), said
    assert text.index("Attention logits") < text.index("Incidents") < text.index("Findings") < text.index("Clear")


def test_rules_that_lack_the_same_stand_together_the_most_first() -> None:
    other, third = (replace(MISSING, code=f"SL9{i}", name=f"rule-{i}", lacks="the anatomy is not known") for i in range(2))
    given = report(MISSING, other, third)
    said = "the anatomy is not known: rule-0, rule-1 log_z was not recorded: output-logit-drift"
    assert said in " ".join(str(given).split())
    page = given.to_html()
    assert page.count("the anatomy is not known") == 1 and page.index("rule-1") < page.index("log_z was not recorded")


def test_a_log_that_tells_nothing_of_the_model_counts_no_parameters(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("step,loss\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(100)))
    for form in (str(postmortem(log)), postmortem(log).to_html()):
        assert "0 of 0" not in form and "does not say what of the model was looked at" in form


def test_names_from_a_log_are_not_read_as_markup() -> None:
    run = runs.logit_growth("[red]run[/]")
    run.notes.append("skipped [link=http://example.org]3 records[/link]")
    run.events.append(Event(3, "[bold]", ":bomb:"))
    text = str(postmortem(run))
    assert "[red]run[/]" in text
    assert "[link=http://example.org]3 records[/link]" in " ".join(text.split())


def test_a_log_without_a_loss_says_what_it_has_and_what_to_do():
    steps = np.arange(3)
    run = Run("log", {"fps": Series("fps", steps, np.ones(3)), "reward": Series("reward", steps, np.ones(3))})
    said = postmortem(run).verdict
    assert "no loss was found among 2 series (fps, reward)" in said
    assert "--loss" in said
