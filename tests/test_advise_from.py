"""Advice from a model: the proposed change clears what was found, and nothing smaller does."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import stabilitylens as sl
from stabilitylens.advice import Proposal
from stabilitylens.advice._change import State, apply
from stabilitylens.advice._data import remedies
from stabilitylens.advice._propose import propose
from stabilitylens.anatomy import Anatomy
from stabilitylens.recipe import Recipe
from stabilitylens.rules import RULES, Evidence, judge
from tests.rule_cases import BAND, PAIRS
from tests.rule_runs import Case, anatomy
from tests.test_cli import call, one_sentence

STATIC = {member.code for member in RULES if member.static}
RECIPE = Recipe(
    "AdamW", 3e-4, 0.9, 0.999, warmup_steps=0, batch_size=64, grad_accumulation=8, n_devices=16, seq_len=1024,
    precision="fp16", loss_scaling=False, max_grad_norm=0.0,
)


def firing() -> list[tuple[str, Case]]:
    """The cases of the rules' tests that fire without a run."""
    cases = [case for group in (PAIRS, BAND) for case in (group.values() if isinstance(group, dict) else group)]
    return [(case.code, case) for case in cases if case.severity and case.code in STATIC and case.make().run is None]


def fired(anatomy: Anatomy, recipe: Recipe | None, *levels: str) -> set[str]:
    found = judge(Evidence("model", anatomy, recipe), static=True)
    return {f.code for f in found if f.verdict == "fired" and f.severity in levels}


def test_every_static_rule_has_a_remedy_and_no_other() -> None:
    assert set(remedies()) == STATIC


def test_remedies_are_whole() -> None:
    by_id: dict[str, Any] = {}
    for options in remedies().values():
        for remedy in options:
            assert set(remedy) <= {"id", "effort", "say", "costs", "anatomy", "recipe", "unless"} and remedy["effort"] in (1, 2, 3, 4)
            assert by_id.setdefault(remedy["id"], remedy) == remedy, "one id, two remedies"
            assert set(remedy.get("anatomy", {})) - {"alpha"} <= set(Anatomy.__dataclass_fields__)
            assert set(remedy.get("recipe", {})) <= set(Recipe.__dataclass_fields__)


@pytest.mark.parametrize(("code", "case"), firing(), ids=lambda value: value if isinstance(value, str) else "")
def test_each_finding_of_a_static_rule_is_cleared(code: str, case: Case) -> None:
    evidence = case.make()
    assert evidence.anatomy is not None
    proposal = propose("model", evidence.anatomy, evidence.recipe)
    assert code in {finding.code for finding in proposal.fired} and not proposal.left
    assert not fired(proposal.anatomy, proposal.recipe, "warning", "error")
    named = {c for change in (*proposal.changes, *proposal.optional) for c in change.clears}
    assert code in named and (code in {c for change in proposal.changes for c in change.clears}) == (case.severity != "info")


def test_the_change_is_the_smallest() -> None:
    start = State(anatomy(24, "post", "none"), RECIPE)
    proposal = propose("model", start.anatomy, start.recipe)
    fields = {field for change in proposal.changes for field in change.fields}
    assert fields == {"recipe.beta2", "recipe.warmup_steps", "recipe.precision"}
    assert proposal.anatomy == start.anatomy
    for field in ("beta2", "warmup_steps", "precision"):
        undone = replace(proposal.recipe, **{field: getattr(RECIPE, field)})
        assert fired(proposal.anatomy, undone, "warning", "error")


def test_the_warm_up_is_that_of_the_beta2_that_is_proposed() -> None:
    proposal = propose("model", anatomy(), replace(RECIPE, precision="bf16"))
    assert (proposal.recipe.beta2, proposal.recipe.warmup_steps) == (0.95, 40)


def test_one_change_for_several_findings_where_one_is_enough() -> None:
    proposal = propose("model", anatomy(24, "post"), replace(RECIPE, precision="bf16", warmup_steps=100))
    assert [change.fields for change in proposal.changes] == [{"recipe.beta2": (0.999, 0.95)}]
    assert proposal.changes[0].clears == ("SL102", "SL601", "SL602", "SL603")


def test_two_changes_for_two_faults_of_one_rule() -> None:
    recipe = replace(RECIPE, beta2=0.95, warmup_steps=100, param_precision="fp16", eps=1e-8)
    proposal = propose("model", anatomy(), recipe)
    assert {f for change in proposal.changes for f in change.fields} == {"recipe.precision", "recipe.param_precision"}
    assert not proposal.left


def test_a_change_that_brings_up_a_finding_is_followed_by_another() -> None:
    """With QK-Norm an attention scale of 1 becomes a finding of its own."""
    proposal = propose("t5", anatomy(qk_norm="none", scale=1.0, n_parameters=8_000_000_000), None)
    assert {f for change in proposal.changes for f in change.fields} == {"anatomy.qk_norm", "anatomy.attention_scale"}
    assert {call.scale for call in proposal.anatomy.attention_calls} == {64**-0.5} and not proposal.left


def test_latent_attention_gets_qk_clip() -> None:
    proposal = propose("mla", anatomy(qk_norm="none", n_parameters=671_000_000_000, latent_norm=True), None)
    assert [change.fields for change in proposal.changes] == [{"recipe.qk_clip": (None, 100.0)}]


def test_a_sound_model_is_left_alone() -> None:
    proposal = propose("sound", anatomy(), Recipe("AdamW", 3e-4, 0.9, 0.95, warmup_steps=100, max_grad_norm=1.0))
    assert (proposal.changes, proposal.left) == ((), ()) and "no change is needed" in proposal.headline
    assert "could not be evaluated" in proposal.headline


def test_what_cannot_be_judged_is_not_called_sound() -> None:
    proposal = propose("unread", Anatomy(), None)
    assert not proposal.changes and "no rule had what it needs" in proposal.headline


def test_what_nothing_clears_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stabilitylens.advice._search.remedies", dict)
    proposal = propose("model", anatomy(24, "post"), replace(RECIPE, precision="bf16"))
    assert {f.code for f in proposal.left} >= {"SL102", "SL601"} and "no change is known that clears" in proposal.headline
    assert "Nothing known clears" in str(proposal)


def test_a_change_applies_to_every_part() -> None:
    mixed = anatomy(4, "post", "none", soft_cap=50.0)
    changed = apply(State(mixed, None), {"anatomy": {"norm_placement": "peri", "qk_norm": "head"}})
    assert changed is not None
    assert {sub.placement for sub in changed.anatomy.sub_layers} == {"peri"}
    assert {(call.qk_norm, call.soft_cap) for call in changed.anatomy.attention_calls} == {("head", None)}
    assert apply(changed, {"anatomy": {"qk_norm": "head"}}) is None


def make() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, 14, enable_nested_tensor=False)


def example() -> tuple[torch.nn.Module, torch.Tensor]:
    return make(), torch.randn(2, 8, 32)


def test_from_a_live_model() -> None:
    proposal = sl.advise(make(), example_inputs=torch.randn(2, 8, 32), recipe={"beta2": 0.999, "beta1": 0.9, "warmup_steps": 10}, name="deep")
    assert isinstance(proposal, Proposal) and proposal.model == "deep"
    assert [change.fields for change in proposal.changes] == [{"recipe.warmup_steps": (10, 2000)}]
    assert set(proposal.changes[0].clears) == {"SL102", "SL601", "SL602"}


def test_from_the_command_line(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "deep_models", __import__("types").SimpleNamespace(make=example))
    (tmp_path / "r.yaml").write_text("beta1: 0.9\nbeta2: 0.999\nwarmup_steps: 10\n", encoding="utf-8")
    assert call("advise", "--from", "deep_models:make", "--recipe", str(tmp_path / "r.yaml"), "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1 and data["model"] == "deep_models:make"
    assert data["changes"][0]["fields"] == {"recipe.warmup_steps": [10, 2000]}
    assert call("advise", "--from", "deep_models:make", "--format", "html", "-o", str(tmp_path / "p.html")) == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "<script" not in page and "post-ln-depth" in page


def test_from_numbers_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("advise", "--params", "70e9", "--layers", "80", "--seq-len", "8192", "--batch-size", "8", "--task", "lm") == 0
    out, err = capsys.readouterr()
    assert "Peri-LN" in out and "heuristic" in out and "\x1b" not in out and err == ""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--layers", "3"], "needs --params and --layers"), (["--params", "-1", "--layers", "3"], "params is -1.0"),
        (["--params", "1e9", "--layers", "0"], "layers is 0"), (["--params", "1e9", "--layers", "3", "--task", "go"], "task is 'go'"),
        (["--params", "1e9", "--layers", "3", "--recipe", "r.yaml"], "--recipe goes with --from"),
        (["--from", "x:y", "--devices", "3"], "--devices"), (["--from", "no/such"], "no/such"),
        (["--params", "1e9", "--layers", "3", "--format", "pdf"], "pdf"),
    ],
)
def test_bad_input_is_one_sentence(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("advise", *argv) == 2
    assert said in one_sentence(capsys.readouterr())
