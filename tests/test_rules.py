"""Every rule: its page, a run that fires it and one that does not, and runs that must alarm nobody."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stabilitylens.rules
from stabilitylens.anatomy import Anatomy
from stabilitylens.explain import explain
from stabilitylens.findings import SEVERITIES, Finding, Where
from stabilitylens.header import Coverage, Header
from stabilitylens.recipe import Recipe
from stabilitylens.rules import RULES, Evidence, Rule, judge
from stabilitylens.rules._rule import verdicts
from stabilitylens.run import INITIAL, Run, Series
from tests import rule_cases as cases
from tests import rule_runs

SECTIONS = ["What it flags", "Why it matters", "Evidence", "Example", "Known false positives", "Remedy"]
#: an abstract, a repository or a thread in one, or a page of PyTorch's documentation
SOURCE = r"https://(arxiv\.org/abs/\d{4}\.\d{4,5}|github\.com/[\w.-]+/[\w.-]+(/(issues|pull)/\d+)?|docs\.pytorch\.org/\S+)"
FOLDER = Path(stabilitylens.rules.__file__).parent
ALL = cases.PAIRS | cases.BAND
every = pytest.mark.parametrize("member", list(RULES), ids=lambda r: r.code)


def worst(findings: list[Finding]) -> str | None:
    fired = [f.severity for f in findings if f.verdict == "fired"]
    return max(fired, key=SEVERITIES.__getitem__, default=None)


@every
def test_is_named_after_its_file(member: Rule):
    module = member.check.__module__.rpartition(".")[2]
    assert module == f"{member.code}_{member.name}".lower().replace("-", "_")
    assert re.fullmatch(r"SL[0-6]\d\d", member.code) and re.fullmatch(r"\d+\.\d+\.\d+", member.since)


@every
def test_has_every_section_of_its_page(member: Rule):
    assert re.findall(r"^## (.*)$", member.page, re.M) == SECTIONS
    for title in SECTIONS:
        assert len(member.section(title)) > 40, f"{member.code}: {title} is empty"
    assert member.summary.endswith(".") and len(member.summary) < 120


@every
def test_cites_at_least_one_source_and_no_section_of_it(member: Rule):
    assert member.sources
    for link in member.sources:
        assert re.fullmatch(SOURCE, link)
    assert not re.search(r"\b(Table|Section|Figure|Fig\.|Appendix|§)\s*\d", member.page)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_every_threshold_has_its_source_beside_it(path: Path):
    lines = path.read_text(encoding="utf-8").splitlines()
    for node in ast.parse("\n".join(lines)).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id.isupper():
            above = lines[node.lineno - 2]
            assert above.startswith("#: ") and len(above) > 20, f"{path.name}: {target.id} has no comment"


@every
def test_has_a_pair_of_tiny_runs(member: Rule):
    severities = [case.severity for case in cases.PAIRS.values() if case.code == member.code]
    assert len(severities) == 2 and None in severities and any(severities)


@pytest.mark.parametrize("name", ALL)
def test_fires_or_stays_silent(name: str):
    case = ALL[name]
    member, evidence = RULES[case.code], ALL[name].make()
    findings = verdicts(member, evidence)
    assert worst(findings) == case.severity
    assert [f.verdict for f in findings] == ["fired"] * len(findings) if case.severity else ["clear"]
    for finding in findings:
        assert finding.code == case.code and finding.run == evidence.name and finding.sources and finding.message
        if finding.verdict == "fired":
            assert finding.remedy == member.section("Remedy")
            assert 0 < finding.confidence <= 1


@pytest.mark.parametrize("name", [n for n, c in ALL.items() if c.severity and not RULES[c.code].static])
def test_a_finding_on_a_run_says_where_when_and_how_much(name: str):
    case, evidence = ALL[name], ALL[name].make()
    for finding in verdicts(RULES[case.code], evidence):
        assert finding.observed is not None and finding.threshold is not None
        assert re.search(r"\d", finding.message) and not finding.message.endswith(".")
        if evidence.run.format == INITIAL:
            assert finding.where.steps is None and " at step " not in finding.message
            continue
        assert finding.where.steps is not None
        first, last = finding.where.steps
        assert 0 <= first <= last <= cases.STEPS[-1]


@pytest.mark.parametrize("name", cases.CONTROLS)
def test_controls_alarm_nobody(name: str):
    findings = judge(cases.CONTROLS[name]())
    loud = [f for f in findings if f.verdict == "fired" and f.severity != "info"]
    assert not loud, [(f.code, f.message) for f in loud]


@every
def test_without_its_needs_it_says_what_it_lacks(member: Rule):
    (finding,) = verdicts(member, Evidence("nothing"))
    assert finding.verdict == "not_evaluated" and finding.severity is None
    for need in member.needs:
        assert need in finding.lacks
    (finding,) = verdicts(member, Evidence("empty", run=Run("empty", {})))
    assert finding.verdict == "not_evaluated"


@pytest.mark.parametrize("member", [r for r in RULES if not r.static], ids=lambda r: r.code)
def test_two_samples_are_too_few(member: Rule):
    fires = next(c for c in cases.PAIRS.values() if c.code == member.code and c.severity)
    evidence = fires.make()
    short = {n: Series(n, s.steps[:2], s.values[:2], s.axes, s.labels) for n, s in evidence.run.series.items()}
    (finding,) = verdicts(member, Evidence("short", evidence.anatomy, evidence.recipe, Run("short", short)))
    assert finding.verdict == "not_evaluated" and "2 samples, fewer than" in finding.lacks


def test_codes_and_names_are_unique():
    assert len({r.name for r in RULES}) == len(RULES)


def test_a_static_audit_runs_only_what_needs_no_run():
    judged = {f.code for f in judge(cases.static(cases.anatomy()), static=True)}
    assert judged == {r.code for r in RULES if r.static}
    assert {"SL101", "SL113", "SL601"} <= judged and not judged & {"SL201", "SL609", "SL001"}


def test_names_the_head_and_the_step_that_it_began_at():
    logits = cases.at(cases.heads(cases.flat(8.0)), (2, 1), cases.rise(3, 30_000))
    (finding,) = verdicts(RULES["SL201"], cases.run(max_attn_logit=logits))
    first = int(cases.STEPS[np.argmax(cases.rise(3, 30_000) > 100)])
    assert finding.where == Where(2, "blocks.2.attn", 1, (first, int(cases.STEPS[-1])))
    assert "layer 2, head 1 grew from 3.8 to 18,700 and is still rising" in finding.message
    assert finding.message.endswith(f"it passed 100 at step {first}")


def test_entropy_names_the_step_and_the_share_of_heads():
    ratio = cases.at(cases.heads(cases.flat(0.8)), (1,), np.tile(cases.rise(0.9, 0.01)[:, None], 4))
    ratio = cases.at(ratio, (1, 3), cases.rise(0.9, 0.005))
    (finding,) = verdicts(RULES["SL202"], cases.run(attn_entropy_ratio=ratio))
    assert (finding.where.layer, finding.where.head) == (1, 3) and finding.severity == "error"
    assert finding.where.steps[0] == cases.STEPS[np.argmax(cases.rise(0.9, 0.005) < 0.1)]
    assert finding.message.endswith("heads of that layer under 0.1: 4 of 4")


def test_an_attention_call_belongs_to_the_block_that_its_name_lies_in():
    run = cases.run(max_attn_logit=cases.heads(cases.rise(3, 30_000))).run
    labels = {"layer": ("dec.1", "dec.10"), "attention": ("dec.1.self", "dec.1.cross", "dec.10.self", "dec.10.cross")}
    (name, series), = run.series.items()
    moved = Run("r", {name: Series(name, series.steps, series.values, series.axes)}, Header(labels=labels))
    where = [f.where for f in verdicts(RULES["SL201"], Evidence("r", run=moved))]
    assert sorted((w.layer_name, w.layer) for w in where) == [
        ("dec.1.cross", 0), ("dec.1.self", 0), ("dec.10.cross", 1), ("dec.10.self", 1),
    ]


def test_what_was_not_recorded_gives_the_reason_of_the_coverage():
    header = Header(coverage=Coverage(not_observed=(("log_z", "output logits could not be told apart"),)))
    (finding,) = verdicts(RULES["SL401"], Evidence("r", run=Run("r", {}, header)))
    assert finding.lacks == "log_z was not recorded: output logits could not be told apart"


@pytest.mark.parametrize(("code", "metric", "value"), [("SL302", "grad_rms", 1e-9), ("SL303", "adam_rms", 3.0)])
def test_a_metric_that_was_observed_outside_of_blocks_alone_is_judged(code: str, metric: str, value: float):
    """A model whose blocks were not found has its layers' array, with nothing in it."""
    blocks, outside = np.full((rule_runs.SAMPLES, 1), np.nan), np.full((rule_runs.SAMPLES, 2), value)
    seen = rule_runs.run(**{f"{metric}__layer": blocks, f"{metric}__group": outside})
    assert {finding.verdict for finding in verdicts(RULES[code], seen)} == {"fired"}
    (finding,) = verdicts(RULES[code], rule_runs.run(**{f"{metric}__layer": blocks}))
    assert finding.lacks == f"{metric} was recorded but never observed"


@pytest.mark.parametrize(
    ("code", "recipe", "lacks"),
    [
        ("SL303", Recipe("AdamW", beta2=0.8), "adam_rms cannot exceed 2.2"),
        ("SL303", Recipe("AdamW"), "beta2 is not known"),
        ("SL302", Recipe("AdamW"), "eps is not known"),
        ("SL302", Recipe("Adafactor", eps=1e-8), "Adafactor does not divide"),
    ],
)
def test_a_recipe_can_make_a_rule_mute(code: str, recipe: Recipe, lacks: str):
    evidence = cases.run(recipe, grad_rms=cases.layers(cases.flat(1e-9)), adam_rms=cases.layers(cases.flat(9.0)))
    (finding,) = verdicts(RULES[code], evidence)
    assert finding.verdict == "not_evaluated" and lacks in finding.lacks


def test_an_anatomy_that_does_not_know_is_no_clean_bill():
    for code in (r.code for r in RULES if r.code.startswith("SL1")):
        (finding,) = verdicts(RULES[code], Evidence("m", anatomy=Anatomy()))
        assert finding.verdict == "not_evaluated"
    (finding,) = verdicts(RULES["SL101"], Evidence("m", anatomy=cases.anatomy(n_attention=0, attention_calls=())))
    assert finding.verdict == "not_evaluated"


def test_every_risk_of_a_recipe_is_named():
    large = cases.anatomy(qk_norm="none", n_parameters=8_000_000_000)
    (finding,) = verdicts(RULES["SL101"], cases.static(large, Recipe("AdamW", lr=0.1)))
    risks = "the size of 8 billion parameters and the learning rate of 0.1 make that risky"
    assert finding.message.startswith("4 of 4 attention calls have neither") and finding.message.endswith(risks)


def test_a_model_far_beyond_the_evidence_is_told_its_scale():
    deep = {n: cases.static(cases.anatomy(48, n_parameters=n)) for n in (10**9, 34_999_999_999, 70 * 10**9)}
    said = {n: verdicts(RULES["SL106"], evidence)[0].message for n, evidence in deep.items()}
    assert said[70 * 10**9].endswith("; the evidence is at 7 billion parameters, this model has 70 billion")
    assert "the evidence is at" not in said[10**9] + said[34_999_999_999]
    assert "evidence up to 7 billion parameters" in explain("SL106") and "evidence up to" not in explain("SL102")


@pytest.mark.parametrize("code", ["SL107", "SL601", "SL607"])
def test_a_rule_that_the_architecture_settles_asks_for_no_recipe(code: str):
    (finding,) = verdicts(RULES[code], cases.static(cases.anatomy(norm_scale=False), None))
    assert finding.verdict == "clear"
    risky = cases.anatomy(24, "post", norm_kind="batchnorm", norm_scale=True)
    (finding,) = verdicts(RULES[code], cases.static(risky, None))
    assert finding.verdict == "not_evaluated" and "recipe" in finding.lacks


def test_a_norm_that_saturates_is_told_from_one_that_is_missing():
    growing = {"max_attn_logit": cases.heads(cases.rise(3, 30_000))}
    saturated = verdicts(RULES["SL201"], cases.run(model=cases.anatomy(qk_norm="head"), **growing))
    missing = verdicts(RULES["SL201"], cases.run(model=cases.anatomy(qk_norm="none"), **growing))
    assert all("so the gains of that norm have grown" in f.message for f in saturated)
    assert not any("gains" in f.message for f in missing)
    assert [f.verdict for f in verdicts(RULES["SL101"], cases.run(model=cases.anatomy(), **growing))] == ["clear"]


@pytest.mark.parametrize("member", [r for r in RULES if not r.static and not r.initial], ids=lambda r: r.code)
def test_one_sample_before_training_shows_no_growth(member: Rule):
    evidence = next(c for c in cases.PAIRS.values() if c.code == member.code and c.severity).make()
    start = {n: Series(n, s.steps[:1], s.values[:1], s.axes, s.labels) for n, s in evidence.run.series.items()}
    (finding,) = verdicts(member, Evidence("start", evidence.anatomy, evidence.recipe, Run("start", start, format=INITIAL)))
    assert finding.verdict == "not_evaluated"


def test_uncertain_anatomy_lowers_confidence():
    sure, unsure = (
        verdicts(RULES["SL101"], cases.static(cases.anatomy(qk_norm="none", uncertain=u)))[0] for u in ((), ("qk_norm",))
    )
    assert unsure.confidence < sure.confidence


VALUES = st.sampled_from([0.0, 1e-9, 0.02, 1.0, 3.0, 150.0, 1e5, 1e300, -5.0, np.nan, np.inf, -np.inf])


@st.composite
def any_evidence(draw) -> Evidence:
    """Any series that rules read, of any length and shape, full of NaN and infinity, with any recipe."""
    values = {}
    for name, axes in cases.AXES.items():
        if draw(st.booleans()):
            shape = (draw(st.integers(0, 12)), *(draw(st.integers(0, 3)) for _ in axes))
            values[name] = draw(hnp.arrays(np.float64, shape, elements=VALUES))
    numbers = st.one_of(st.none(), st.sampled_from([0.0, 1e-8, 0.5, 0.95, 0.999, 1.0, 2.0]))
    recipe = Recipe(draw(st.sampled_from([None, "AdamW", "SGD", "Muon"])), draw(numbers), draw(numbers), draw(numbers), draw(numbers))
    model = draw(st.sampled_from([None, Anatomy(), cases.anatomy(), cases.anatomy(20, "post", "none", uncertain=("qk_norm",))]))
    return cases.run(draw(st.sampled_from([None, recipe])), model, **values)


@settings(max_examples=150, deadline=None)
@given(any_evidence())
def test_no_run_makes_a_rule_raise(evidence: Evidence):
    findings = judge(evidence)
    assert {f.code for f in findings} == {r.code for r in RULES}
    for finding in findings:
        assert finding.verdict != "fired" or (finding.severity in SEVERITIES and "nan" not in finding.message)
