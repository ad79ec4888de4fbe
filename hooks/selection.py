"""Which metrics are computed, and so which taps have to be read."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import Tensor

from stabilitylens.errors import BadInput
from stabilitylens.hooks.slots import ROW_TYPES
from stabilitylens.kernels import moments, norm_row, second_moments
from stabilitylens.metrics import METRICS, Metric
from stabilitylens.moments import Moments, Statistics

#: makes a row of ``Moments`` of a tensor
RowOf = Callable[[Tensor], Tensor]

#: rows that are made from those of another tap
MADE_FROM = {"scaled_update": "update"}
#: cheapest first: what makes a row of ``Moments``, and the fields that it then has
_BY_COST: tuple[tuple[RowOf, frozenset[str]], ...] = (
    (norm_row, frozenset({"count", "sum_sq", "nonfinite"})),
    (second_moments, frozenset({"count", "sum_sq", "nonfinite", "abs_max"})),
    (moments, frozenset(Moments.names())),
)


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


def rows_for(metrics: Sequence[Metric]) -> dict[str, RowOf]:
    """For each tap of ``Moments`` the cheapest row that has every field which these metrics read."""
    read: dict[str, set[str]] = {}
    for metric in metrics:
        for tap, fields in _fields_of(metric).items():
            read.setdefault(MADE_FROM.get(tap, tap), set()).update(fields)
    return {tap: next(row_of for row_of, has in _BY_COST if fields <= has) for tap, fields in read.items()}


def _fields_of(metric: Metric) -> dict[str, set[str]]:
    """The fields of ``Moments`` that a metric reads, found by calling it; all of them where it can't be called."""
    kinds = {tap: ROW_TYPES[MADE_FROM.get(tap, tap)] for tap in metric.needs if MADE_FROM.get(tap, tap) in ROW_TYPES}
    read: dict[str, set[str]] = {tap: set() for tap, kind in kinds.items() if kind is Moments}
    for axes in metric.axes if read else ():
        shape = (2,) * len(axes.split())
        try:
            with np.errstate(all="ignore"):
                metric.function(*(_noting(kinds[tap], shape, read.get(tap, set())) for tap in metric.needs))
        except Exception:
            return {tap: set(Moments.names()) for tap in read}
    return read


def _noting(kind: type[Statistics], shape: tuple[int, ...], read: set[str]) -> Statistics:
    """Rows of ones that note which of their fields are read."""

    class Noting(kind):  # type: ignore[valid-type, misc]
        def __getattribute__(self, name: str) -> object:
            read.update({name} & set(kind.names()))
            return super().__getattribute__(name)

    return Noting(*(np.ones(shape) for _ in kind.names()))
