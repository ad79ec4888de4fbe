"""The axes of an array, from its name: ``max_attn_logit/attention_head`` has attention and head."""

from __future__ import annotations

from stabilitylens.header import Header

#: every axis that a metric may have, the longer names first where one ends in another
AXES = ("kv_head", "d_head", "d_model", "batch", "head", "query", "key", "layer", "attention", "norm", "expert", "group",
        "branch")


def axes_of(name: str, n_axes: int, header: Header) -> tuple[str, ...]:
    """Names of the axes of an array, one for each of its dimensions.

    Args:
        name: the metric, a slash, and its axes joined by ``_``.
        n_axes: how many dimensions it has.
        header: what the metric says of its axes.
    """
    metric, _, joined = name.partition("/")
    meta = header.metrics.get(metric)
    for axes in (tuple(a.split()) for a in (meta.axes if meta else ())):
        if "_".join(axes) == joined and len(axes) == n_axes:
            return axes
    axes = _split(joined)
    return axes if len(axes) == n_axes else tuple(f"axis_{i}" for i in range(n_axes))


def _split(joined: str) -> tuple[str, ...]:
    found: list[str] = []
    while joined:
        axis = next((a for a in AXES if joined == a or joined.startswith(f"{a}_")), joined.split("_")[0])
        found.append(axis)
        joined = joined[len(axis) + 1:]
    return tuple(found)
