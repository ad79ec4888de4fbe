"""The generated pages are current, and every page can be asked for by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from stabilitylens.docs import FILES, main
from stabilitylens.errors import BadInput
from stabilitylens.explain import explain
from stabilitylens.incidents import DETECTORS
from stabilitylens.metrics import METRICS
from stabilitylens.rules import RULES

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", FILES)
def test_is_what_the_docstrings_say(name: str):
    assert (DOCS / name).read_text(encoding="utf-8") == FILES[name](), "run: make docs"


def test_writes_then_checks(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = tmp_path / "docs"
    assert main([str(folder), "--check"]) == 1 and not folder.exists()
    assert main([str(folder)]) == 0 and main([str(folder), "--check"]) == 0
    capsys.readouterr()
    (folder / "rules.md").write_text("# Rules\n", encoding="utf-8")
    assert main([str(folder), "--check"]) == 1
    said = capsys.readouterr().err
    assert "rules.md" in said and "metrics.md" not in said and "make docs" in said
    assert (folder / "rules.md").read_text(encoding="utf-8") == "# Rules\n"


def test_every_rule_and_metric_is_in_them():
    rules, metrics = FILES["rules.md"](), FILES["metrics.md"]()
    for rule in RULES:
        assert f"\n## {rule.code} {rule.name}\n" in rules and f"](#{rule.code.lower()}-{rule.name})" in rules
    for metric in METRICS:
        assert f"\n## {metric.name}\n" in metrics and f"[{metric.name}](#{metric.name})" in metrics
    assert "\n### Remedy\n" in rules and "\n## Remedy\n" not in rules


@pytest.mark.parametrize("name", ["SL201", "sl201", "attention-logit-growth", "Attention_Logit_Growth", " SL201 "])
def test_a_rule_by_code_or_name(name: str):
    page = explain(name)
    assert page.startswith("# SL201 attention-logit-growth\n\n*dynamic · needs `max_attn_logit` · also judged before training (`--init`) · since 0.1.0*\n")
    assert "\n## Remedy\n" in page and page.endswith("\n") and "\n    " not in page


def test_a_metric_says_unit_axes_and_taps():
    assert "*unit nat · axes attention × head · from attention · low values" in explain("attn_entropy")
    assert "*unit nat · axes none (one number) · kept at every step*" in explain("loss")


def test_everything_has_a_page():
    for member in (*RULES, *METRICS, *DETECTORS):
        assert member.page.splitlines()[0] in explain(member.name)


@pytest.mark.parametrize(
    ("name", "offer"),
    [("SL2O1", "SL201"), ("max_atn_logit", "max_attn_logit"), ("atention-logit-growth", "attention-logit-growth")],
)
def test_an_unknown_name_is_answered_with_near_ones(name: str, offer: str):
    with pytest.raises(BadInput, match=rf"called {name!r}; did you mean .*\b{offer}\b"):
        explain(name)


@pytest.mark.parametrize("name", ["", "§§§", "a\nb"])
def test_nonsense_is_answered_with_an_example(name: str):
    with pytest.raises(BadInput, match="try SL201"):
        explain(name)
