"""TensorBoard's own reader shows what it should: the tags, the layout, and every spike."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util.tensor_util import make_ndarray

from stabilitylens.header import Header, MetricMeta
from stabilitylens.readers import read
from stabilitylens.recipe import Recipe
from stabilitylens.tags import Tags
from stabilitylens.writers._plan import Planner
from stabilitylens.writers._windows import POINTS, Window
from stabilitylens.writers.recording import RunWriter

ATTENTION = ("max_attn_logit", "attn_entropy", "attn_entropy_ratio", "query_norm", "key_norm", "value_norm")
BY_LAYER = ("resid_rms", "resid_absmax", "resid_grad_norm", "branch_ratio", "nonfinite_count")
BY_PARAMETER = (
    "grad_norm", "grad_norm_clipped", "param_norm", "update_ratio", "update_rms", "adam_rms", "adam_eps_share",
)
SCALARS = ("loss", "lr", "grad_norm", "grad_norm_clipped", "clip_coef", "loss_scale", "tokens", "step_time", "skipped")


def meta(name: str, *axes: str) -> MetricMeta:
    return MetricMeta(name, "1", axes, f"what {name} is", "low" if "entropy" in name else "high")


def header(layers: int) -> Header:
    metrics = [meta(name, "attention head") for name in ATTENTION] + [meta(name, "layer") for name in BY_LAYER]
    metrics += [meta(name, "", "layer", "group") for name in BY_PARAMETER] + [meta("loss", "")]
    names = tuple(f"blocks.{i}" for i in range(layers))
    return Header(metrics={m.name: m for m in metrics}, labels={"layer": names, "attention": names},
                  recipe=Recipe(optimizer="Adam_W*"))


def sample(layers: int, heads: int, step: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(step)
    out = {f"{name}/attention_head": generator.random((layers, heads)) for name in ATTENTION}
    out |= {f"{name}/layer": generator.random(layers) for name in BY_LAYER + BY_PARAMETER}
    out |= {f"{name}/group": generator.random(4) for name in BY_PARAMETER}
    return out | {"log_z": np.array(1.5), "output_logit_absmax": np.array(3.0)}


def accumulated(folder: Path, points: int = 0) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder / "stabilitylens"), size_guidance={"scalars": points, "tensors": 0})
    accumulator.Reload()
    return accumulator


def values(accumulator: EventAccumulator, tag: str) -> list[float]:
    return [event.value for event in accumulator.Scalars(tag)]


@pytest.mark.parametrize(("layers", "heads"), [(80, 64), (4, 2), (1, 1)])
def test_tags_stay_below_200(tmp_path: Path, layers: int, heads: int) -> None:
    writer = RunWriter(tmp_path)
    writer.header(header(layers))
    for step in range(60):
        writer.step(step, dict.fromkeys(SCALARS, 1.0))
        if step % 10 == 0:
            writer.sample(step, sample(layers, heads, step))
    writer.event(3, "step_skipped", "inf")
    writer.close()
    tags = accumulated(tmp_path).Tags()
    assert len(tags["scalars"]) + len(tags["tensors"]) < 200
    width = len(str(layers - 1))
    first, last = f"resid_rms/layer_{0:0{width}d}", f"max_attn_logit/layer_{layers - 1}"
    assert {
        "loss/train", "loss/train_max", "grad_norm/global", "grad_norm/global_max", "lr/global", "log_z/global",
        "max_attn_logit/max", "max_attn_logit/min", "max_attn_logit/median", "max_attn_logit/worst_layer",
        "max_attn_logit/max_max", "attn_entropy/min_min", "grad_norm/group_max", "events/step_skipped", first, last,
    } <= set(tags["scalars"])
    assert all(set(tag) <= set("abcdefghijklmnopqrstuvwxyz0123456789_/") for tag in tags["scalars"])


@given(st.integers(1, 120), st.integers(1, 200))
def test_a_share_of_the_budget_for_any_number_of_metrics(metrics: int, layers: int) -> None:
    planner = Planner(Tags(), 0, expected=metrics)
    plans = [planner.plan(f"metric{i}/layer", (layers,)) for i in range(metrics)]
    tags = [tag for plan in plans for tag in (*plan.tags, *([plan.window_tag] if plan.window else []))]
    assert len(tags) == len(set(tags)) <= max(160, metrics)
    assert all(plan.tags[0].endswith("/max") for plan in plans)


def test_what_the_tags_of_an_array_hold(tmp_path: Path) -> None:
    high = np.array([[1.0, 9.0], [2.0, np.nan], [np.nan, np.nan]])
    low = np.array([[0.5, 0.1], [0.2, 0.3], [0.4, np.inf]])
    writer = RunWriter(tmp_path)
    writer.header(header(3))
    writer.sample(0, {"max_attn_logit/attention_head": high, "attn_entropy_ratio/attention_head": low})
    writer.sample(1, {"max_attn_logit/attention_head": np.full((3, 2), np.nan)})
    writer.close()
    shown = accumulated(tmp_path)
    expected = {"max": 9, "min": 1, "median": 2, "worst_layer": 0, "layer_0": 9, "layer_1": 2, "layer_2": math.nan}
    for leaf, value in expected.items():
        np.testing.assert_equal(values(shown, f"max_attn_logit/{leaf}"), [np.float32(value), math.nan])
    expected = {"min": 0.1, "max": math.inf, "worst_layer": 0, "layer_0": 0.1, "layer_1": 0.2, "layer_2": 0.4}
    for leaf, value in expected.items():
        np.testing.assert_allclose(values(shown, f"attn_entropy_ratio/{leaf}"), [value], rtol=1e-6)


def test_attention_calls_are_not_called_layers_where_they_are_not_one_each(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(Header(labels={"layer": ("a", "b"), "attention": ("a.self", "b.self", "b.cross")}))
    writer.sample(0, {"key_norm/attention_kv_head": np.ones((3, 2))})
    writer.close()
    assert {"key_norm/worst_attention", "key_norm/attention_2"} <= set(accumulated(tmp_path).Tags()["scalars"])


def test_an_array_of_another_shape_or_none_never_raises(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step, shape in enumerate([(5, 2), (2, 2), (0,), (0, 3), (3, 0), ()]):
        writer.sample(step, {"odd/layer": np.ones(shape)})
    writer.close()


def test_a_spike_of_one_step_shows_in_1000_points_of_20000(tmp_path: Path) -> None:
    writer, generator = RunWriter(tmp_path), np.random.default_rng(0)
    for step in range(20_000):
        spike = 5.0 if step == 10_003 else 0.0
        writer.step(step, {"loss": 2 + 0.01 * generator.random() + spike, "grad_norm": 1 + spike})
        if step % 10 == 0:
            attention = np.full((4, 2), 3.0 + (90 if step == 15_010 else 0))
            writer.sample(step, {"max_attn_logit/attention_head": attention})
    writer.close()
    shown = accumulated(tmp_path, points=1000)
    assert len(shown.Scalars("loss/train")) == 1000
    for tag, height in (("loss/train_max", 7), ("grad_norm/global_max", 6), ("max_attn_logit/max_max", 93)):
        points = shown.Scalars(tag)
        assert len(points) < 400
        assert max(event.value for event in points) >= height
    assert next(e.step for e in shown.Scalars("loss/train_max") if e.value > 6) == 10_003


@given(st.integers(0, 10**9), st.integers(1, 40_000), st.sampled_from([1, 10, 1000]), st.booleans())
def test_windows_hold_every_extreme_in_few_points(origin: int, steps: int, every: int, low: bool) -> None:
    window, points = Window(origin, low), []
    data = np.random.default_rng(steps).random(-(-steps // every))
    for i, value in enumerate(data):
        if point := window.add(origin + i * every, float(value)):
            points.append(point)
    points += [point for point in [window.flush()] if point]
    assert window.flush() is None
    assert [step for step, _ in points] == sorted({step for step, _ in points})
    assert all(data[(step - origin) // every] == value for step, value in points)
    worst = data.min() if low else data.max()
    assert worst in [value for _, value in points]
    since = np.array([step - origin for step, _ in points])
    begin = 1
    while begin <= steps:
        assert np.count_nonzero((since >= begin) & (since < 2 * begin)) <= POINTS
        begin *= 2
    assert len(points) <= 1000


def test_a_window_with_something_not_finite_shows_it() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        window = Window(0)
        window.add(9600, 1.0)
        window.add(9601, bad)
        window.add(9602, 2.0)
        np.testing.assert_equal(window.flush(), (9601, bad))


def test_the_layout_has_a_margin_chart_a_metric(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(header(4))
    writer.sample(0, sample(4, 2, 0))
    writer.close()
    tensor = accumulated(tmp_path).Tensors("custom_scalars__config__")[-1].tensor_proto
    layout = layout_pb2.Layout.FromString(tensor.string_val[0])
    assert [category.title for category in layout.category] == [
        "Loss", "Gradients", "Attention", "Residual stream", "Optimizer",
    ]
    charts = [chart.margin.series for category in layout.category for chart in category.chart if chart.margin.series]
    assert len(charts) == len(ATTENTION + BY_LAYER + BY_PARAMETER)
    shown = set(accumulated(tmp_path).Tags()["scalars"])
    assert all({line.value, line.lower, line.upper} <= shown for chart in charts for line in chart)
    logits = next(chart for chart in charts if chart[0].value == "max_attn_logit/median")
    assert [line.value for line in logits[1:]] == [f"max_attn_logit/layer_{i}" for i in range(4)]


def test_markers_of_incidents_and_histograms_of_entries(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(header(3))
    for step in range(60):
        writer.step(step, {"loss": 30.0 if step == 40 else math.nan if step == 50 else 2.0})
        writer.sample(step, {"resid_rms/layer": np.array([1.0, 2.0, np.nan if step % 2 else np.inf])})
    writer.close()
    shown = accumulated(tmp_path)
    assert [(event.step, event.value) for event in shown.Scalars("incidents/spike")] == [(40, 30.0)]
    assert [event.step for event in shown.Scalars("incidents/nonfinite")] == [50]
    points = PluginAccumulator(str(tmp_path / "stabilitylens"), size_guidance={"tensors": 0})
    points.Reload()
    assert points.SummaryMetadata("resid_rms/histogram").plugin_data.plugin_name == "histograms"
    rows = make_ndarray(points.Tensors("resid_rms/histogram")[-1].tensor_proto)
    assert rows[:, 2].sum() == 2 and rows[0, 0] == 1.0 and rows[-1, 1] == 2.0
    assert not any(series.startswith("incidents") for series in read(tmp_path).series)


def test_the_header_for_people_is_escaped(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(header(1))
    writer.close()
    text = accumulated(tmp_path).Tensors("stabilitylens/about")[-1].tensor_proto.string_val[0].decode()
    assert r"Adam\_W\*" in text and r"what grad\_norm is" in text


def test_non_finite_scalars_are_stored(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step, value in enumerate([math.nan, math.inf, -math.inf]):
        writer.step(step, {"loss": value})
    writer.close()
    np.testing.assert_equal(values(accumulated(tmp_path), "loss/train"), [math.nan, math.inf, -math.inf])


def test_names_and_definitions_are_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = RunWriter(tmp_path)
    writer.header(header(1))
    for step in range(3):
        writer.step(step, {"loss": 1.0, "My Metric": 2.0})
        writer.sample(step, sample(1, 2, step))
    writer.close()
    accumulator = PluginAccumulator(str(tmp_path / "stabilitylens"))
    accumulator.Reload()
    assert accumulator.SummaryMetadata("loss/train").summary_description == "what loss is (1)"
    shown = accumulator.SummaryMetadata("resid_rms/median").summary_description
    assert shown == "median; what resid_rms is"
    assert accumulator.SummaryMetadata("my_metric/global").display_name == "My Metric"
    assert [e.step for e in accumulator.Tensors("my_metric/global")] == [0, 1, 2]
    accumulated(tmp_path)
    assert "oddly" not in caplog.text


def test_a_later_session_supersedes_in_tensorboard(tmp_path: Path) -> None:
    for resume, steps in ((None, range(100)), (50, range(50, 70))):
        writer = RunWriter(tmp_path, resume_step=resume)
        for step in steps:
            writer.step(step, {"loss": 1.0 if resume is None else 2.0})
        writer.close()
    points = accumulated(tmp_path).Scalars("loss/train")
    assert [(e.step, e.value) for e in points] == [(s, 1.0 if s < 50 else 2.0) for s in range(70)]


def test_windows_go_on_growing_over_resumes(tmp_path: Path) -> None:
    for session in range(6):
        writer = RunWriter(tmp_path, resume_step=session * 2000 or None)
        for step in range(session * 2000, session * 2000 + 2000):
            writer.step(step, {"loss": 1.0})
        writer.close()
    assert len(accumulated(tmp_path).Scalars("loss/train_max")) < 48 + 48 * 8
