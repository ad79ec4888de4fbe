"""TensorBoard's custom-scalar layout: no chart is empty, and the lines of a margin chart have the same steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from stabilitylens.dashboard._places import began
from stabilitylens.header import Header, MetricMeta
from stabilitylens.writers.recording import RunWriter


def header() -> Header:
    return Header(metrics={"resid_rms": MetricMeta("resid_rms", "1", ("layer",), "RMS")}, labels={"layer": ("a", "b", "c")})


def read(folder: Path, points: int = 0) -> EventAccumulator:
    found = EventAccumulator(str(folder / "stabilitylens"), size_guidance={"scalars": points, "tensors": 0})
    found.Reload()
    return found


def charts(folder: Path) -> dict[str, list[str]]:
    tensor = read(folder).Tensors("custom_scalars__config__")[-1].tensor_proto
    layout = layout_pb2.Layout.FromString(tensor.string_val[0])
    return {category.title: [chart.title for chart in category.chart] for category in layout.category}


@pytest.mark.parametrize(("scalars", "expected"), [
    (("grad_norm",), ["grad_norm"]), (("grad_norm_clipped",), ["grad_norm_clipped"]),
    (("grad_norm", "grad_norm_clipped"), ["grad_norm, grad_norm_clipped"]), ((), None),
])
def test_a_chart_is_called_by_what_it_shows(scalars: tuple[str, ...], expected: list[str] | None, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(header())
    for step in range(3):
        writer.step(step, {"loss": 2.0} | dict.fromkeys(scalars, 1.0))
        writer.sample(step, {"resid_rms/layer": np.ones(3)})
    writer.close()
    assert charts(tmp_path).get("Gradients") == expected
    assert charts(tmp_path)["Loss"][0] == "loss" and "Optimizer" not in charts(tmp_path)


def test_a_scalar_that_comes_later_has_its_chart(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.header(header())
    for step in range(4):
        writer.step(step, {"loss": 2.0} | ({"lr": 0.1} if step > 1 else {}))
        writer.sample(step, {"resid_rms/layer": np.ones(3)})
    writer.close()
    assert charts(tmp_path)["Optimizer"] == ["lr"]


@pytest.mark.parametrize("kept", [0, 7])
def test_the_lines_of_a_margin_chart_have_the_same_steps(kept: int, tmp_path: Path) -> None:
    """TensorBoard asks for each tag by itself; that the steps do not match for a while it says only while it still reads."""
    writer = RunWriter(tmp_path)
    writer.header(header())
    for step in range(40):
        writer.sample(step, {"resid_rms/layer": np.full(3, np.nan) if step % 5 == 0 else np.arange(3.0) + step})
    writer.close()
    found = read(tmp_path, kept)
    tensor = found.Tensors("custom_scalars__config__")[-1].tensor_proto
    layout = layout_pb2.Layout.FromString(tensor.string_val[0])
    margins = [line for category in layout.category for chart in category.chart for line in chart.margin.series]
    steps = {tag: [event.step for event in found.Scalars(tag)] for line in margins for tag in (line.value, line.lower, line.upper)}
    assert len(steps) >= 3 and len(set(map(tuple, steps.values()))) == 1


def test_when_a_run_was_begun_is_told_by_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "stabilitylens"
    assert began(tmp_path) == 0
    folder.mkdir()
    for second in (1_700_000_000, 1_700_000_500):
        (folder / f"events.out.tfevents.{second}.host.1.{second % 7}").touch()
    assert began(tmp_path) == began(folder) == 1_700_000_500
