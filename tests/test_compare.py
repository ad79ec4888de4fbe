"""Where runs part, beyond noise, and by what the failed ones can be told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stabilitylens as sl
from stabilitylens import cli
from stabilitylens.comparison import differences, part, partings, ratios, traits
from stabilitylens.errors import BadInput
from stabilitylens.run import Run, Series
from stabilitylens.writers._exporter import write_to
from tests import run_builders as runs
from tests.test_report_contract import documented

N, AT = 400, 250


def curve(seed: int, size: float = 0.03) -> np.ndarray:
    return (2 + 3 * np.exp(-np.arange(N) / 80)) * np.exp(size * np.random.default_rng(seed).normal(size=N))


def run_of(path: str = "runs/a", **series: np.ndarray) -> Run:
    made = {}
    for name, values in series.items():
        axes = {1: (), 2: ("layer",)}[values.ndim]
        key = f"{name}/layer" if axes else name
        made[key] = Series(key, np.arange(len(values)), values, axes)
    return Run(path, made, runs.header())


@pytest.mark.parametrize("seed", range(12))
def test_two_healthy_runs_of_other_data_do_not_part(seed: int) -> None:
    heavy = np.exp(0.04 * np.random.default_rng(seed).standard_t(4, size=N))
    a, b = run_of(loss=curve(seed), grad_norm=heavy), run_of(loss=curve(seed + 100), grad_norm=heavy[::-1])
    assert [p.step for p in partings(a, b)] == [None, None]


@pytest.mark.parametrize("factor", [1.15, 1.5, 0.8])
def test_a_level_that_lasts_is_placed_within_the_noise(factor: float) -> None:
    a, b = curve(1), curve(2)
    b[AT:] *= factor
    found = part(run_of(loss=a), run_of(loss=b), "loss")
    assert found is not None and found.step is not None and abs(found.step - AT) <= 4 and not found.from_start
    assert (found.ratio > 1) == (factor > 1)


def test_equal_runs_part_at_the_very_step_and_say_how_long_they_were_equal() -> None:
    a = curve(1)
    b = a.copy()
    b[AT:] *= 1 + 0.03 * np.random.default_rng(0).normal(size=N - AT)
    b[AT] = a[AT] * 1.4
    found = part(run_of(loss=a), run_of(loss=b), "loss")
    assert found is not None and (found.step, found.equal_until) == (AT, AT - 1) and found.ratio == pytest.approx(1.4)
    same = part(run_of(loss=a), run_of(loss=a.copy()), "loss")
    assert same is not None and same.step is None and same.equal_until == N - 1 and "does not part" in str(same)


def test_single_points_of_heavy_noise_are_no_parting_and_a_nan_is() -> None:
    a, b = curve(1), curve(2)
    b[100] *= 1.25
    assert part(run_of(loss=a), run_of(loss=b), "loss").step is None
    b[AT:] = np.nan
    found = part(run_of(loss=a), run_of(loss=b), "loss")
    assert found.step == AT and np.isnan(found.ratio)


def test_what_differs_always_comes_after_what_parts() -> None:
    a = run_of(loss=curve(1), lr=np.full(N, 1e-3), grad_norm=curve(3))
    b = run_of(loss=curve(2), lr=np.full(N, 3e-3), grad_norm=curve(4) * np.where(np.arange(N) < AT, 1, 3))
    found = partings(a, b)
    assert [(p.series, p.from_start) for p in found if p.step is not None] == [("grad_norm", False), ("lr", True)]
    assert found[1].ratio == pytest.approx(3) and "from the start" in str(found[1])


def test_the_layer_that_parts_first_is_named() -> None:
    a = np.exp(0.02 * np.random.default_rng(1).normal(size=(N, 4)))
    b = a * np.exp(0.02 * np.random.default_rng(2).normal(size=(N, 4)))
    b[AT:, 2] *= 2
    b[AT + 20 :, 0] *= 2
    found = part(run_of(resid_rms=a), run_of(resid_rms=b), "resid_rms/layer")
    assert (found.where.layer, found.step) == (2, AT)


def test_series_without_a_common_step_or_shape_are_left_out() -> None:
    a, b = run_of(loss=curve(1)), run_of(loss=curve(2))
    b.series["loss"] = replace(b.series["loss"], steps=np.arange(N) + 10_000)
    assert partings(a, b) == []
    assert partings(run_of(x=np.ones((N, 3))), run_of(x=np.ones((N, 4)))) == []
    assert sl.compare(a, b).headline.startswith("the runs have no series in common")


def test_ratios_are_by_layer_at_the_common_end() -> None:
    a, b = np.ones((N, 3)), np.ones((N + 50, 3)) * np.array([1.0, 2.0, np.nan])
    (table,) = ratios(run_of(resid_rms=a), run_of(resid_rms=b))
    assert table.ratios[:2] == (1.0, 2.0) and np.isnan(table.ratios[2])
    assert table.steps == (N - 5, N - 1) and table.labels[0] == "layer 0"
    heads = next(t for t in ratios(runs.healthy(), runs.logit_growth()) if t.series == "max_attn_logit/attention_head")
    assert heads.axis == "attention" and heads.labels[0] == "blocks.0.attn" and max(heads.ratios) > 10


def recipe(run: Run, **fields: object) -> Run:
    run.header = replace(run.header, recipe=replace(run.header.recipe, **fields))
    return run


def test_differences_are_what_the_headers_say() -> None:
    a, b = runs.healthy("runs/a"), recipe(runs.healthy("runs/b"), lr=0.3, batch_size=8)
    a.header = replace(a.header, versions={"torch": "2.13"})
    found = {d.trait: d.values for d in differences([a, b])}
    assert found == {"recipe.lr": (0.1, 0.3)}
    assert traits(a)["anatomy.qk_norm"] == "head" and traits(a)["versions.torch"] == "2.13" and "recipe.batch_size" not in traits(a)


def failing(run: Run) -> Run:
    run.series["loss"].values[150:] = np.nan
    return run


def test_of_many_runs_the_trait_that_the_failed_share_and_the_nearest_healthy_one() -> None:
    made = [
        recipe(runs.healthy("runs/low"), lr=0.01), recipe(runs.healthy("runs/low2"), lr=0.01, beta2=0.999),
        recipe(failing(runs.healthy("runs/high")), lr=0.3), recipe(failing(runs.healthy("runs/high2")), lr=0.1, beta2=0.999),
    ]  # fmt: skip
    found = sl.compare(*made)
    assert found.failed == (False, False, True, True) and found.neighbours == {2: 0, 3: 1}
    best = found.shared[0]
    assert (best.trait, best.condition, best.separates) == ("recipe.lr", "≥ 0.1", True)
    assert all(row.trait != "recipe.beta2" for row in found.shared)
    assert [(pair.a, pair.b) for pair in found.pairs] == [(0, 2), (1, 3)] and found.pairs[0].first.step == 150
    assert found.headline == "2 of 4 runs failed; recipe.lr ≥ 0.1: 2 of 2 failed runs, 0 of 2 healthy ones"


def test_where_none_failed_each_is_compared_with_the_first() -> None:
    found = sl.compare(runs.healthy("a"), runs.healthy("b"), runs.healthy("c"))
    assert not any(found.failed) and found.shared == () and [(p.a, p.b) for p in found.pairs] == [(0, 1), (0, 2)]


def test_the_json_has_the_documented_keys() -> None:
    data = json.loads(sl.compare(runs.healthy("a"), failing(runs.logit_growth("b")), recipe(runs.healthy("c"), lr=1.0)).to_json(), parse_constant=pytest.fail)
    assert set(data) == documented("Compare")
    assert set(data["runs"][0]) == documented("A compared run") and set(data["pairs"][0]) == documented("A pair")
    assert set(data["pairs"][0]["partings"][0]) == documented("A parting") and set(data["pairs"][0]["ratios"][0]) == documented("A ratio table")
    assert set(data["shared"][0]) == documented("A shared trait")
    assert data["neighbours"] == [{"run": 1, "nearest": 0}] and {"trait", "values"} == set(data["differences"][0])


def test_text_and_page_say_the_same_and_escape_what_comes_from_a_log() -> None:
    odd = failing(runs.logit_growth("runs/<b>odd</b>"))
    found = sl.compare(runs.healthy("runs/a"), odd)
    text, page = " ".join(str(found).split()), found.to_html()
    assert "The runs differ" in text or "The runs part" in text
    assert "anatomy.qk_norm" in text and "anatomy.qk_norm" in page and "Content-Security-Policy" in page
    assert "<b>odd</b>" not in page and "&lt;b&gt;odd" in page and len(page) < 6_000_000


@pytest.mark.parametrize("given", [[], [runs.healthy()]])
def test_fewer_than_two_runs_are_one_sentence(given: list[Run]) -> None:
    with pytest.raises(BadInput, match="needs two runs"):
        sl.compare(*given)


@pytest.mark.parametrize(("given", "said"), [(0, "none was named"), (1, "a.csv is one; name another beside it")])
def test_the_command_says_in_plain_words_that_it_needs_two(
    given: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_to(run_of(loss=curve(1)), "csv", tmp_path / "a.csv")
    with pytest.raises(SystemExit) as left:
        cli.main(["compare", *[str(tmp_path / "a.csv")] * given])
    told = capsys.readouterr().err.strip()
    assert left.value.code == 2 and said in told and len(told.splitlines()) == 1 and "compare(" not in told


def test_the_command_reads_files_and_writes_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    for path, run in zip(paths, (run_of(loss=curve(1)), run_of(loss=np.where(np.arange(N) < AT, 1, 2) * curve(1))), strict=True):
        write_to(run, "csv", Path(path))
    for form, begins in (("text", "a.csv | b.csv"), ("json", "{"), ("html", "<!doctype html>")):
        with pytest.raises(SystemExit) as left:
            cli.main(["compare", *paths, "--format", form])
        out = capsys.readouterr().out
        assert left.value.code == 0 and out.startswith(begins) and str(AT) in out
