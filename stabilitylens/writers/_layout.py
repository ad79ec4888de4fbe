"""TensorBoard's custom-scalar layout: one margin chart a metric, in groups."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar

from stabilitylens.tags import name_of
from stabilitylens.writers._protobuf import string_tensor

#: the first group whose pattern is found in a metric's name has its chart
_GROUPS = (
    ("Loss", r"^(loss|log_z|output_logit)"),
    ("Gradients", r"grad|clip"),
    ("Attention", r"attn|query|key|value|attention"),
    ("Residual stream", r"resid|branch|act_|norm_gain|dyt|nonfinite"),
    ("Optimizer", r"param|update|adam|lr"),
    ("Other", ""),
)


#: markers at steps that smell of an incident while they are recorded
INCIDENTS = ("incidents/spike", "incidents/nonfinite")


def group_of(metric: str) -> str:
    """The group of charts that a metric belongs to."""
    return next(group for group, pattern in _GROUPS if re.search(pattern, metric))


def _margin(title: str, low: str, middle: str, high: str, layers: tuple[str, ...]) -> layout_pb2.Chart:
    """A margin chart; a layer is a line in it, which TensorBoard takes as a margin of no width."""
    lines = [(middle, low, high), *((layer, layer, layer) for layer in layers)]
    series = [layout_pb2.MarginChartContent.Series(value=v, lower=a, upper=b) for v, a, b in lines]
    return layout_pb2.Chart(title=title, margin=layout_pb2.MarginChartContent(series=series))


def _lines(title: str, tags: Iterable[str]) -> layout_pb2.Chart:
    patterns = [f"^{re.escape(tag)}$" for tag in tags]
    return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=patterns))


#: charts of scalars of every step, each there where the run has one of its tags, and called by those
SCALARS = (
    ("Loss", ("loss/train", "loss/train_max")),
    ("Gradients", ("grad_norm/global", "grad_norm_clipped/global")),
    ("Optimizer", ("lr/global",)),
)


def layout(margins: Iterable[tuple[str, tuple[str, str, str], tuple[str, ...], str]], tags: Container[str]) -> summary_pb2.Summary.Value:
    """The layout as a value of an event.

    Args:
        tags: those that the run has.
        margins: metric, the tags of its least, middle and largest value, those of its sampled layers, and that of its worst
            value over windows, which alone shows every spike through TensorBoard's own sampling; empty for none.
    """
    charts: dict[str, list[layout_pb2.Chart]] = {}
    for group, shown in SCALARS:
        if title := ", ".join(name_of(tag) for tag in shown if tag in tags):
            charts.setdefault(group, []).append(_lines(title, shown))
    charts.setdefault("Loss", []).append(_lines("incidents: the loss at their step", INCIDENTS))
    for metric, ends, layers, window in margins:
        title = f"{metric}: least, median, largest" + (", sampled layers" if layers else "")
        charts.setdefault(group_of(metric), []).append(_margin(title, *ends, layers))
        if window:
            charts[group_of(metric)].append(_lines(f"{metric}: the worst of each window, every spike in it", (window,)))
    categories = [layout_pb2.Category(title=group, chart=charts[group]) for group, _ in _GROUPS if group in charts]
    encoded = layout_pb2.Layout(category=categories).SerializeToString()
    return summary_pb2.Summary.Value(
        tag=custom_scalar.CONFIG_SUMMARY_TAG,
        tensor=string_tensor(encoded),
        metadata=custom_scalar.create_summary_metadata(),
    )
