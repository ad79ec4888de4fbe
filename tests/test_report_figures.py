"""What the pictures are drawn from: nothing that matters is thinned away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stabilitylens.findings import Finding, Where
from stabilitylens.report import Subject
from stabilitylens.reports._curves import curves, evidence
from stabilitylens.reports._envelope import envelope, thin_steps
from stabilitylens.reports._maps import CELLS, COLUMNS, maps
from stabilitylens.reports._series import trace_of, worst
from stabilitylens.reports._sparkline import BARS, sparkline
from stabilitylens.reports._words import number, sentence, short_names, without_formula
from tests import run_builders as runs

values = arrays(np.float64, st.integers(0, 400), elements=st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf]))


@settings(max_examples=60, deadline=None)
@given(values, st.integers(1, 30))
def test_an_envelope_keeps_every_columns_extremes_in_place(y: np.ndarray, columns: int) -> None:
    steps = np.arange(len(y)) * 3
    x, kept = envelope(steps, y, columns)
    assert len(x) <= max(3 * columns, len(y) if len(y) <= 2 * columns else 0)
    assert np.array_equal(kept, y[x // 3], equal_nan=True) and (np.diff(x) > 0).all()
    finite = y[np.isfinite(y)]
    if finite.size:
        assert kept[np.isfinite(kept)].min() == finite.min() and kept[np.isfinite(kept)].max() == finite.max()
    assert (~np.isfinite(kept)).any() == (~np.isfinite(y)).any()


def test_a_one_step_spike_in_a_million_points_is_drawn() -> None:
    y = np.ones(1_000_000)
    y[543_210] = 9.0
    x, kept = envelope(np.arange(len(y)), y, 2000)
    assert x[np.argmax(kept)] == 543_210 and len(x) <= 6000


@pytest.mark.parametrize(("worse", "peak"), [("high", 7.0), ("low", -7.0)])
def test_a_thinned_map_keeps_the_worrying_end(worse: str, peak: float) -> None:
    z = np.zeros((1001, 3, 2))
    z[617, 1, 0] = peak
    steps, thin = thin_steps(np.arange(1001), z, 50, worse)
    assert len(steps) == 50 and steps[-1] == 1000
    assert thin.shape == (50, 3, 2)
    assert (thin != 0).sum() == 1 and thin[:, 1, 0][np.searchsorted(steps, 617)] == peak


def test_worst_skips_what_was_not_observed_and_is_not_observed_only_if_all_is() -> None:
    z = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [np.inf, 0.0, np.nan]])
    assert np.array_equal(worst(z, "high"), [3.0, np.nan, np.inf], equal_nan=True)
    assert np.array_equal(worst(z, "low"), [1.0, np.nan, 0.0], equal_nan=True)


def test_maps_share_one_scale_and_name_the_worst_head() -> None:
    base, good = runs.logit_growth(), runs.healthy()
    drawn, left_out = maps([base, good])
    logits = next(each for each in drawn if each["title"].startswith("max_attn_logit"))
    both = [run["max_attn_logit"].values for run in (base, good)]
    assert not left_out and logits["log"]
    assert (logits["low"], logits["high"]) == (min(v.max(axis=2).min() for v in both), max(v.max() for v in both))
    panel = logits["panels"][0]
    assert panel["z"][2][-1] == pytest.approx(both[0][-1, 2].max(), rel=1e-3)
    assert panel["who"][2][-1] == 1
    assert panel["rows"] == [f"blocks.{i}.attn" for i in range(4)]


def test_entropy_is_mapped_by_its_low_end() -> None:
    (entropy,) = [m for m in maps([runs.logit_growth()])[0] if m["title"].startswith("attn_entropy_ratio")]
    values = runs.logit_growth()["attn_entropy_ratio"].values
    assert entropy["panels"][0]["z"][2][-1] == pytest.approx(values[-1, 2].min(), rel=1e-3)


def test_noise_is_not_stretched_over_the_whole_scale() -> None:
    (update,) = [m for m in maps([runs.healthy()])[0] if m["title"] == "update_rms"]
    assert update["high"] == 2 * update["low"] == 2 * runs.healthy()["update_rms"].values.min()
    run = runs.build(growth=1.0, path="flat")
    (entropy,) = [m for m in maps([run])[0] if m["title"].startswith("attn_entropy_ratio")]
    assert entropy["low"] == entropy["high"] / 2 == run["attn_entropy_ratio"].values.min(axis=2).max() / 2


def test_what_is_not_observed_and_what_is_not_finite_are_told_apart() -> None:
    run = runs.healthy()
    rms = run["resid_rms"].values
    rms[3, 1], rms[5, 2], rms[8, 0] = np.nan, np.inf, np.nan
    counts = np.zeros_like(rms)
    counts[8, 0] = 12
    run.series["nonfinite_count/layer"] = replace(run["resid_rms"], name="nonfinite_count/layer", values=counts)
    run["max_attn_logit"].values[8, :2] = np.nan
    logits = next(m for m in maps([run])[0] if m["title"].startswith("max_attn_logit"))["panels"][0]
    assert logits["z"][1][8] is None and logits["broken"] == [[0, 8]]
    panel = next(m for m in maps([run])[0] if m["title"] == "resid_rms")["panels"][0]
    assert panel["z"][1][3] is None and panel["z"][2][5] is None
    assert sorted(panel["broken"]) == [[0, 8], [2, 5]]


def test_what_fired_rules_looked_at_comes_first() -> None:
    assert maps([runs.logit_growth()], ["key_norm"])[0][0]["title"].startswith("key_norm")


def test_maps_stay_within_the_budget_and_say_what_was_left_out() -> None:
    steps = np.arange(1000)
    run = runs.healthy()
    for i in range(30):
        run.series[f"m{i}/layer"] = replace(
            run["resid_rms"], name=f"m{i}/layer", steps=steps, values=np.random.default_rng(i).random((1000, 96)), labels={}
        )
    drawn, left_out = maps([run])
    cells = sum(len(panel["x"]) * len(panel["rows"]) for each in drawn for panel in each["panels"])
    assert cells <= CELLS and min(len(p["x"]) for m in drawn for p in m["panels"] if m["axis"] == "layer") >= 30
    assert left_out and len(drawn) + len(left_out) == 37
    assert COLUMNS[0] <= max(len(p["x"]) for m in drawn for p in m["panels"]) <= COLUMNS[1]


def test_the_evidence_is_the_metric_at_the_findings_place_in_every_run() -> None:
    base, good = runs.logit_growth(), runs.healthy()
    values = base["max_attn_logit"].values[:, 2, 1]
    finding = Finding(
        base.path, "SL201", "attention-logit-growth", "fired", "error", where=Where(2, None, 1, (100, 290)),
        observed=float(np.median(values[-5:])), threshold=1000.0,
    )
    picture = evidence(finding, 0, [base, good])
    assert picture is not None and picture["threshold"] == 1000.0 and picture["span"] == [100, 290]
    assert picture["lines"][0]["y"] == pytest.approx(values, rel=1e-3)
    assert picture["lines"][1]["y"] == pytest.approx(good["max_attn_logit"].values[:, 2, 1], rel=1e-3)
    ratio = trace_of(replace(finding, observed=1.7e9), base)
    assert ratio is not None and ratio.threshold is None
    assert evidence(replace(finding, code="SL999"), 0, [base]) is None


def test_a_layer_finds_its_attention_call_by_the_anatomy() -> None:
    run = runs.logit_growth()
    assert run.header.anatomy is not None
    calls = tuple(replace(call, layer=2 * i) for i, call in enumerate(run.header.anatomy.attention_calls))
    run.header = replace(run.header, anatomy=replace(run.header.anatomy, attention_calls=calls))
    finding = Finding(run.path, "SL201", "attention-logit-growth", "fired", where=Where(4, None, 1))
    trace = trace_of(finding, run)
    assert trace is not None and np.array_equal(trace.values, run["max_attn_logit"].values[:, 2, 1])


def test_a_loss_that_is_not_a_number_is_marked() -> None:
    run = runs.healthy()
    run["loss"].values[50] = np.nan
    (loss,) = [c for c in curves([Subject(run.path, (), run=run)]) if c["title"] == "loss"]
    assert loss["lines"][0]["broken"] == [50] and loss["lines"][0]["y"][50] is None


@given(arrays(np.float64, st.integers(1, 200), elements=st.floats(1e-3, 1e6)), st.integers(1, 60))
def test_a_sparkline_shows_the_peak(y: np.ndarray, width: int) -> None:
    line = sparkline(y, width)
    columns = np.array_split(y, min(width, len(y)))
    assert len(line) == len(columns) and set(line) <= set(BARS)
    if y.max() > y.min() and len(columns) > 1 and min(c.max() for c in columns) < y.max():
        assert line[next(i for i, c in enumerate(columns) if c.max() == y.max())] == BARS[-1]


@pytest.mark.parametrize("values", [[3.4, -0.0, -0.0], [1e-9, 0.0, 1e9], [-1.7e308, 0.0, 1.7e308]])
def test_a_sparkline_of_nothing_or_of_the_whole_range(values: list[float]) -> None:
    line = sparkline(np.array(values))
    assert line[int(np.argmin(values))] == BARS[0] and line[int(np.argmax(values))] == BARS[-1]


def test_a_sparkline_tells_blank_from_broken() -> None:
    assert sparkline(np.array([np.nan, 1.0, np.inf, 2.0])) == " ▁×█"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.0123"), (4.5678, "4.57"), (22_049, "22,000"), (1e-8, "1e-08"), (1.234e7, "1.23e+07"), (np.inf, "inf"),
     (-2500.0, "-2,500"), (0, "0")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_sentence_leaves_the_name_of_a_metric_as_it_is() -> None:
    assert sentence("max_attn_logit grew.") == "max_attn_logit grew."
    assert sentence("nothing fired") == "Nothing fired."


def test_names_are_cut_to_what_tells_them_apart() -> None:
    assert short_names(["demo/runs/base", "demo/runs/qk"]) == ["base", "qk"]
    assert short_names(["demo/runs/base"]) == ["demo/runs/base"]
    assert short_names(["runs", "runs/more"]) == ["runs", "runs/more"]
    assert short_names(["/a/run", "b/run"]) == ["/a/run", "b/run"]


def test_a_definition_is_shown_without_its_formula() -> None:
    assert without_formula(r"RMS of the stream: $\sqrt{\sum x^2 / n}$.") == "RMS of the stream."
    assert without_formula("Mean of H / ln n.") == "Mean of H / ln n."
