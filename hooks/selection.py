"""Which metrics are computed, and so which taps have to be read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from stabilitylens.errors import BadInput
from stabilitylens.metrics import METRICS, Metric

#: rows that are made from those of another tap
MADE_FROM = {"scaled_update": "update"}


def selected(names: Iterable[str] | None) -> tuple[Metric, ...]:
    """The metrics of these names; for None and for the name ``default`` all that are not opt-in.

    Raises:
        BadInput: there is no such metric.
    """
    if names is not None and not isinstance(names, Iterable):
        raise BadInput(f"metrics={names!r} is no list of metrics; pass their names, as ['grad_norm']")
    default = [metric.name for metric in METRICS if not metric.opt_in]
    given = ["default"] if names is None else [names] if isinstance(names, str) else list(names)
    wanted = [name for one in given for name in (default if one == "default" else [one])]
    known = {metric.name: metric for metric in METRICS}
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 3, 0.5)
            meant = f"did you mean {' or '.join(near)}?" if near else "see docs/metrics.md for their names"
            raise BadInput(f"metrics= names {name!r}, which is no metric; {meant}")
    return tuple(known[name] for name in dict.fromkeys(wanted))


def taps_of(metrics: Sequence[Metric]) -> frozenset[str]:
    """The taps that these metrics read."""
    return frozenset(MADE_FROM.get(tap, tap) for metric in metrics for tap in metric.needs)
