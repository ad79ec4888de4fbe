"""TensorBoard's custom-scalar layout, and the header for people: one margin chart a metric, in groups."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar

from stabilitylens.header import Header
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


def group_of(metric: str) -> str:
    """The group of charts that a metric belongs to."""
    return next(group for group, pattern in _GROUPS if re.search(pattern, metric))


def _margin(metric: str, low: str, middle: str, high: str) -> layout_pb2.Chart:
    series = layout_pb2.MarginChartContent.Series(value=middle, lower=low, upper=high)
    return layout_pb2.Chart(title=metric, margin=layout_pb2.MarginChartContent(series=[series]))


def _lines(title: str, tags: Iterable[str]) -> layout_pb2.Chart:
    patterns = [f"^{re.escape(tag)}$" for tag in tags]
    return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=patterns))


def layout(margins: Iterable[tuple[str, str, str, str]]) -> summary_pb2.Summary.Value:
    """The layout as a value of an event.

    Args:
        margins: metric and the tags of its least, middle and largest value.
    """
    charts = {"Loss": [_lines("loss", ("loss/train", "loss/train_max"))],
              "Gradients": [_lines("grad_norm", ("grad_norm/global", "grad_norm_clipped/global"))]}
    for metric, *tags in margins:
        charts.setdefault(group_of(metric), []).append(_margin(f"{metric}: least, median, largest", *tags))
    categories = [layout_pb2.Category(title=group, chart=charts[group]) for group, _ in _GROUPS if group in charts]
    encoded = layout_pb2.Layout(category=categories).SerializeToString()
    return summary_pb2.Summary.Value(
        tag=custom_scalar.CONFIG_SUMMARY_TAG,
        tensor=string_tensor(encoded),
        metadata=custom_scalar.create_summary_metadata(),
    )


def _escaped(text: object) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>~&])", r"\\\1", str(text))


def about(header: Header) -> str:
    """The header for people, in Markdown."""
    recipe = header.recipe.to_dict() if header.recipe else {}
    facts: dict[str, object] = {"observed": header.coverage, **header.sampling, **recipe, **header.versions}
    if header.anatomy:
        facts["norm placement"], facts["QK-Norm"] = header.anatomy.norm_placement, header.anatomy.qk_norm
    rows = [f"| {_escaped(name)} | {_escaped(value)} |" for name, value in facts.items() if value is not None]
    metrics = [f"| {_escaped(m.name)} | {_escaped(m.unit)} | {_escaped(m.definition)} |" for m in header.metrics.values()]
    return "\n".join(["| | |", "|---|---|", *rows, "", "| metric | unit | definition |", "|---|---|---|", *metrics])
