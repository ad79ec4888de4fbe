"""read(write(run)) is the run: scalars and arrays as float32, names as given."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensorboard.compat.proto import event_pb2

from stabilitylens.header import Coverage, Header, MetricMeta
from stabilitylens.recipe import Recipe
from stabilitylens.run import Event, load
from stabilitylens.tags import clean, name_of, tag_of
from stabilitylens.writers._protobuf import STEP, ScalarEvent, metadata
from stabilitylens.writers.recording import RunWriter

NAMES = st.one_of(
    st.sampled_from(["loss", "lr", "grad_norm", "tokens", "loss/train", "loss/train_max", "Loss", "lr/global", "Läuft?"]),
    st.text(min_size=1, max_size=12),
)
STEPS = st.lists(st.integers(0, 1 << 40), unique=True, max_size=8).map(sorted)
METRICS = {
    "resid_rms": MetricMeta("resid_rms", "1", ("layer",), "RMS of the residual stream after each block"),
    "max_attn_logit": MetricMeta("max_attn_logit", "1", ("attention head",), "largest logit"),
    "attn_entropy": MetricMeta("attn_entropy", "nat", ("attention head",), "mean row entropy", "low"),
    "grad_norm": MetricMeta("grad_norm", "1", ("", "layer", "group"), "L2 norm of the gradient"),
    "loss": MetricMeta("loss", "nat", ("",), "mean token cross-entropy"),
}
HEADER = Header(
    metrics=METRICS,
    labels={"layer": ("blocks.0", "blocks.1", "blocks.2"), "attention": ("a", "b", "c")},
    recipe=Recipe(optimizer="AdamW", lr=1e-3),
    sampling={"every": 10},
    versions={"python": "3.11"},
    coverage=Coverage(parameters=(3, 4), not_observed=(("branch_ratio", "sub-layers could not be told apart"),)),
)


def as_float32(values: list[float]) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float64).astype(np.float32).astype(np.float64)


@st.composite
def scalar_steps(draw: st.DrawFn) -> dict[int, dict[str, float]]:
    names = draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
    return {
        step: {name: draw(st.floats(width=64)) for name in names if draw(st.booleans())} for step in draw(STEPS)
    }


@settings(deadline=None, max_examples=60)
@given(scalar_steps())
def test_scalars_are_read_as_written(steps: dict[int, dict[str, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder))
        for step, scalars in steps.items():
            writer.step(step, scalars)
        writer.close()
        run = load(folder)
    assert set(run) == {name for scalars in steps.values() for name in scalars}
    for name, series in run.items():
        expected = {step: scalars[name] for step, scalars in steps.items() if name in scalars}
        assert series.steps.tolist() == list(expected)
        np.testing.assert_array_equal(series.values, as_float32(list(expected.values())))


ARRAYS = st.fixed_dictionaries({}, optional={
    "resid_rms/layer": hnp.arrays(np.float64, 3, elements=st.floats(width=64)),
    "max_attn_logit/attention_head": hnp.arrays(np.float32, (3, 2), elements=st.floats(width=32)),
    "attn_entropy/attention_head": hnp.arrays(np.float32, (3, 2), elements=st.floats(width=32)),
    "grad_norm/layer": hnp.arrays(np.float64, 3, elements=st.floats(width=64)),
    "grad_norm/group": hnp.arrays(np.float64, 1, elements=st.floats(width=64)),
    "log_z": hnp.arrays(np.float64, (), elements=st.floats(width=64)),
})


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.integers(0, 1 << 40), ARRAYS, max_size=6))
def test_arrays_are_read_as_written(samples: dict[int, dict[str, np.ndarray]]) -> None:
    samples = dict(sorted(samples.items()))
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder))
        writer.header(HEADER)
        for step, arrays in samples.items():
            writer.sample(step, arrays)
        writer.close()
        run = load(folder)
        assert run.header == HEADER
        assert set(run) == {name for arrays in samples.values() for name in arrays}
        for name, series in run.items():
            expected = {step: arrays[name] for step, arrays in samples.items() if name in arrays}
            assert series.steps.tolist() == list(expected)
            np.testing.assert_array_equal(series.values, as_float32(list(expected.values())))


def test_axes_labels_units_and_definitions_come_from_the_header(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(HEADER)
    writer.sample(0, {"max_attn_logit/attention_head": np.zeros((3, 2)), "grad_norm/group": np.zeros(2)})
    writer.close()
    series = load(tmp_path)["max_attn_logit"]
    assert (series.axes, series.unit, series.definition) == (("attention", "head"), "1", "largest logit")
    assert series.labels == {"attention": ("a", "b", "c")}
    assert load(tmp_path)["grad_norm"].axes == ("group",)


def test_the_later_header_counts(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(Header(sampling={"every": 1}))
    writer.header(HEADER)
    writer.close()
    assert load(tmp_path).header == HEADER


def test_a_header_with_anything_in_it_is_written(tmp_path: Path) -> None:
    header = Header(recipe=Recipe(lr=float("nan")), sampling={"every": float("inf"), "where": Path("a"), "at": (1, 2)})
    writer = RunWriter(tmp_path)
    writer.header(header)
    writer.close()
    read = load(tmp_path).header
    assert read.recipe == Recipe() and read.sampling == {"every": None, "where": "a", "at": [1, 2]}


def test_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.step(np.int64(300), {"loss": np.float32(2.5), "skipped": np.bool_(True), "tokens": np.int32(7)})
    writer.close()
    run = load(tmp_path)
    assert {name: (s.steps.tolist(), s.values.tolist()) for name, s in run.items()} == {
        "loss": ([300], [2.5]), "skipped": ([300], [1.0]), "tokens": ([300], [7.0]),
    }


def test_events_are_read_as_written(tmp_path: Path) -> None:
    events = [Event(3, "step_skipped", "inf in *gradients* <b>"), Event(4, "Lens Failure!", ""), Event(4, "x/y", "ü\ud800")]
    writer = RunWriter(tmp_path)
    for event in events:
        writer.event(event.step, event.kind, event.text)
    writer.close()
    assert load(tmp_path).events == [*events[:2], Event(4, "x/y", "ü?")]


def test_large_arrays_stay_in_the_file(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step in range(20):
        writer.sample(step, {"max_attn_logit/attention_head": np.full((80, 64), float(step))})
    writer.close()
    values = load(tmp_path)["max_attn_logit"].values
    assert not values.flags.owndata and not values.flags.writeable and values.ctypes.data % 64 == 0
    np.testing.assert_array_equal(values[:, 7, 9], np.arange(20.0))


def test_every_array_record_is_aligned(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    path = tmp_path / "stabilitylens" / "arrays.0.sl"
    for n in range(40):
        writer.header(Header(versions={"x": "y" * n}))
        writer.sample(n, {"resid_rms/layer": np.zeros(n)})
        assert path.stat().st_size % 64 == 0
    writer.close()


def test_bytes_a_sample_are_within_the_budget(tmp_path: Path) -> None:
    arrays = {f"metric{i}/attention_head": np.random.default_rng(i).random((80, 64)) for i in range(7)}
    arrays |= {f"metric{i}/layer": np.ones(80) for i in range(7, 25)}
    writer = RunWriter(tmp_path)
    writer.sample(0, arrays)
    folder = tmp_path / "stabilitylens"
    sizes = [sum(file.stat().st_size for file in folder.iterdir())]
    for step in range(1, 11):
        writer.sample(step, arrays)
    sizes.append(sum(file.stat().st_size for file in folder.iterdir()))
    writer.close()
    assert (sizes[1] - sizes[0]) / 10 <= 12_000 + 4.5 * sum(array.size for array in arrays.values())


@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.lists(st.tuples(st.text(max_size=200), st.floats(width=32, allow_nan=False), st.text(max_size=5)), max_size=5),
)
def test_events_encoded_by_hand_are_what_protobuf_parses(
    step: int, wall: float, values: list[tuple[str, float, str]]
) -> None:
    metas = [metadata(shown) for _, _, shown in values]
    encoder = ScalarEvent(STEP, [tag for tag, _, _ in values], metas)
    event = event_pb2.Event.FromString(encoder.encode(step, wall, [value for _, value, _ in values]))
    assert (event.step, event.wall_time) == (step, wall)
    assert [(v.tag, v.simple_value, v.metadata.display_name) for v in event.summary.value] == values


@given(st.text(max_size=30))
def test_tags_are_lower_case_and_plain(name: str) -> None:
    tag = tag_of(name)
    assert set(tag) <= set("abcdefghijklmnopqrstuvwxyz0123456789_/") and "/" in tag and "//" not in tag
    assert clean(tag) == tag


@pytest.mark.parametrize(("name", "tag"), [
    ("loss", "loss/train"), ("grad_norm", "grad_norm/global"), ("lr", "lr/global"), ("val/loss", "val/loss"),
    ("Val Loss (%)", "val_loss_/global"),
])
def test_tags_of_names(name: str, tag: str) -> None:
    assert tag_of(name) == tag
    if name.islower() and " " not in name:
        assert name_of(tag) == name


def test_values_beyond_float32_become_infinite(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.step(1, {"loss": 1e300, "lr": -1e300})
    writer.step(2, {"loss": math.nan, "lr": math.inf})
    writer.close()
    run = load(tmp_path)
    assert run["loss"].values[0] == math.inf and math.isnan(run["loss"].values[1])
    assert run["lr"].values.tolist() == [-math.inf, math.inf]


def test_to_pandas_is_a_long_table(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    writer = RunWriter(tmp_path)
    writer.step(1, {"loss": 2.0})
    writer.sample(1, {"resid_rms/layer": np.array([1.0, 2.0])})
    writer.close()
    table = load(tmp_path).to_pandas()
    assert table["series"].tolist() == ["loss", "resid_rms/layer", "resid_rms/layer"]
    assert table["value"].tolist() == [2.0, 1.0, 2.0] and table["layer"].tolist()[1:] == [0, 1]


def test_nothing_but_the_folder_is_written(tmp_path: Path) -> None:
    RunWriter(tmp_path / "deep" / "down").close()
    assert os.listdir(tmp_path / "deep" / "down") == ["stabilitylens"]
    names = sorted(os.listdir(tmp_path / "deep" / "down" / "stabilitylens"))
    assert names[0] == "arrays.0.sl" and names[1].startswith("events.out.tfevents.") and len(names) == 2
