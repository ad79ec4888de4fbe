"""``audit`` in Python and on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.recipe import Recipe
from tests.test_cli import call, one_sentence

torch = pytest.importorskip("torch")

MODELS = """
import torch
from torch import nn

def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 14)

def with_inputs():
    return encoder(), torch.zeros(1, 3, 16)

def number():
    return 3

def broken():
    raise RuntimeError("no\\nluck")

def leaves():
    raise SystemExit(4)

constant = 3
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of factories in the working folder."""
    name = f"models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    return name


def post_ln() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 14, enable_nested_tensor=False)


def test_an_audit_judges_by_the_static_rules_alone() -> None:
    report = sl.audit(post_ln(), recipe={"lr": 1e-3})
    fired = {finding.name for finding in report.findings if finding.verdict == "fired"}
    assert {"post-ln-depth", "missing-qk-norm"} <= fired
    assert {finding.code[:3] for finding in report.findings} == {"SL1", "SL6"}
    assert report.anatomy is not None and report.anatomy.norm_placement == "post" and report.runs == []
    assert report.subjects[0].name == "TransformerEncoder" and "post-ln-depth" in str(report)


@pytest.mark.parametrize("made", [torch.optim.AdamW, torch.optim.SGD])
def test_a_recipe_is_read_off_an_optimizer(made: type[torch.optim.Optimizer]) -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    other = torch.nn.Parameter(torch.zeros(2))
    optimizer = made([{"params": [weight], "lr": 1e-3}, {"params": [other], "lr": 3e-3}], lr=1e-2, weight_decay=0.1)
    recipe = Recipe.from_optimizer(optimizer)
    assert (recipe.optimizer, recipe.lr, recipe.weight_decay) == (made.__name__, 3e-3, 0.1)
    adam = made is torch.optim.AdamW
    assert (recipe.beta1, recipe.beta2, recipe.eps) == ((0.9, 0.999, 1e-8) if adam else (None, None, None))


def test_a_warm_up_that_starts_at_zero_does_not_hide_the_learning_rate() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 30)
    assert optimizer.param_groups[0]["lr"] == 0 and Recipe.from_optimizer(optimizer).lr == 0.1


@pytest.mark.parametrize("given", [None, Recipe(lr=0.1), {"lr": 0.1}], ids=["none", "recipe", "dict"])
def test_a_recipe_may_be_a_recipe_or_a_dict(given: object) -> None:
    found = sl.audit(post_ln(), recipe=given).subjects[0].recipe
    assert found == (None if given is None else Recipe(lr=0.1))


def test_what_is_no_model_and_no_recipe_is_bad_input() -> None:
    with pytest.raises(BadInput, match="needs a torch.nn.Module and was given str"):
        sl.audit("gpt2")
    with pytest.raises(BadInput, match=r"unknown fields \(rate\)"):
        sl.audit(post_ln(), recipe={"rate": 1})
    with pytest.raises(BadInput, match="recipe is a float"):
        sl.audit(post_ln(), recipe=0.1)


@pytest.mark.parametrize("factory", ["encoder", "with_inputs"])
def test_a_factory_is_audited(models: str, factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("audit", f"{models}:{factory}", "--format", "json", "--fail-on", "warning") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["model"] == f"{models}:{factory}" and data["anatomy"]["n_layers"] == 14


def test_a_recipe_file_counts(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("recipe.json").write_text('{"lr": 0.5, "warmup_steps": 2000}', encoding="utf-8")
    assert call("audit", f"{models}:encoder", "--recipe", "recipe.json", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == Recipe(lr=0.5, warmup_steps=2000).to_dict() | {"notes": []}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{m}:number", "given int"), ("{m}:broken", "RuntimeError: no luck"), ("{m}:leaves", "SystemExit"),
        ("{m}:constant", "of type int"), ("{m}:nothing", "no attribute"), ("no_such_module:f", "No module named"),
        ("nothing", "does not exist"), (".", "no config.json"),
    ],
)
def test_what_gives_no_model_is_one_sentence(
    models: str, spec: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("audit", spec.format(m=models)) == 2
    assert said in one_sentence(capsys.readouterr())


@pytest.mark.parametrize("text", ["{", "[1]", '{"rate": 1}', None], ids=["broken", "list", "unknown", "missing"])
def test_a_recipe_that_is_none_is_one_sentence(
    models: str, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path("recipe.json").write_text(text, encoding="utf-8")
    assert call("audit", f"{models}:encoder", "--recipe", "recipe.json") == 2
    assert "recipe" in one_sentence(capsys.readouterr())


def test_a_config_of_hugging_face_is_audited_without_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 3, "num_attention_heads": 32}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for path in (tmp_path, tmp_path / "config.json"):
        assert call("audit", str(path), "--format", "json") == 0
        anatomy = json.loads(capsys.readouterr().out)["anatomy"]
        assert (anatomy["n_layers"], anatomy["n_heads"], anatomy["norm_placement"]) == (3, 32, "pre")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert call("audit", str(tmp_path)) == 2
    assert "cannot build a model" in one_sentence(capsys.readouterr())
