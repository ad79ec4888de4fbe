"""What a metric is, and how all of them are computed from one sampled step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.header import MetricMeta, Worse
from stabilitylens.moments import Statistics
from stabilitylens.registry import Registry, page_of

Function = Callable[..., Float[np.ndarray, "*where"]]

#: taps whose rows are parameters: pooled over the model, by layer, or by group before a metric sees them
PARAMETER_TAPS = frozenset({"param", "grad", "grad_clipped", "update", "scaled_update", "adam"})


@dataclass(frozen=True)
class Sample:
    """What the taps delivered at one step.

    Attributes:
        taps: rows by tap: ``resid``, ``resid_grad`` (layer); ``branch``, ``stream`` (layer, branch);
            ``attention`` (attention, head); ``key_value`` (attention, kv_head); ``logits`` (); and one
            row a parameter for ``param``, ``grad``, ``grad_clipped``, ``update``, ``scaled_update``
            (update / lr) and ``adam``.
        layer_of, group_of: per parameter, its block, and its module outside the blocks; -1 for none.
        n_layers, n_groups: sizes of those axes.
    """

    taps: dict[str, Statistics]
    layer_of: Int[np.ndarray, " parameter"] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    group_of: Int[np.ndarray, " parameter"] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    n_layers: int = 0
    n_groups: int = 0

    def rows(self, tap: str, axes: str) -> Statistics:
        """The rows of a tap over the axes that a metric wants; a scalar is one row, since NumPy's own scalars are no arrays."""
        rows = self.taps[tap]
        if tap not in PARAMETER_TAPS:
            return rows if axes else type(rows)(*(np.reshape(getattr(rows, name), 1) for name in rows.names()))
        if axes == "layer":
            return rows.pool(self.layer_of, self.n_layers)
        if axes == "group":
            return rows.pool(self.group_of, self.n_groups)
        return rows.pool(np.zeros(len(self.layer_of), dtype=np.int64), 1)


@dataclass(frozen=True)
class Metric:
    """A metric: unit, the axes of each of its arrays (``""`` is a scalar), the taps it needs, its page.

    ``every_step`` metrics have no taps: the lens hands their value over at every step. ``opt_in`` ones are
    sampled only where they are asked for.
    """

    name: str
    unit: str
    axes: tuple[str, ...]
    needs: tuple[str, ...]
    page: str
    function: Function
    every_step: bool
    worse: Worse = "high"
    opt_in: bool = False

    @property
    def definition(self) -> str:
        """The first line of the page."""
        return self.page.splitlines()[0]

    @property
    def meta(self) -> MetricMeta:
        """What the header of a run keeps of it."""
        return MetricMeta(self.name, self.unit, self.axes, self.definition, self.worse)


METRICS: Registry[Metric] = Registry("stabilitylens.metrics")


def metric(
    *, unit: str, axes: str | Iterable[str] = "", needs: str | Iterable[str] = (), worse: Worse = "high",
    opt_in: bool = False,
) -> Callable[[Function], Function]:
    """Register a metric under its function's name, which is its file's.

    Args:
        unit: ``1``, ``nat``, ``s``, …
        axes: axes of its array, space-separated (``"attention head"``), or several of them.
        needs: the taps whose rows the function takes, in order. With none, the function is never
            called: it documents a value that the loop hands over at every step.
        worse: which end is the worrying one: what "the worst layer" means in TensorBoard and reports.
        opt_in: sampled only where it is asked for by name.
    """

    def register(function: Function) -> Function:
        wanted = (axes,) if isinstance(axes, str) else tuple(axes)
        taps = (needs,) if isinstance(needs, str) else tuple(needs)
        page = page_of(function)
        METRICS.add(function.__name__, Metric(function.__name__, unit, wanted, taps, page, function, not taps, worse, opt_in), function)
        return function

    return register


def compute(sample: Sample, metrics: Iterable[Metric] | None = None) -> dict[str, Float[np.ndarray, "*where"]]:
    """Every metric, or of these every one, whose taps the sample has: ``{"resid_rms/layer": array, "grad_norm": scalar, …}``.

    An array is named ``<metric>/<axes joined by _>``, a scalar by its metric alone. What the taps did
    not observe is NaN.
    """
    out: dict[str, Float[np.ndarray, "*where"]] = {}
    for member in METRICS if metrics is None else metrics:
        if member.every_step or not set(member.needs) <= set(sample.taps):
            continue
        for axes in member.axes:
            with np.errstate(all="ignore"):
                value = member.function(*(sample.rows(tap, axes) for tap in member.needs))
            array = np.asarray(value, dtype=np.float64)
            if axes:
                out[f"{member.name}/{axes.replace(' ', '_')}"] = array
            else:
                out[member.name] = array.reshape(())
    return out
