"""Which scalars TensorBoard gets of an array: a few each, under a budget of tags for all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int

from stabilitylens.header import Header, Worse
from stabilitylens.tags import Tags, clean, tag_of
from stabilitylens.writers._windows import Window

#: a log directory with fewer than 200 tags stays readable; what is left is for the scalars of every step
BUDGET = 150
#: at most so many layers of an array get a tag of their own
LAYERS = 8
#: metrics that people look at first: beside their share they have so many more layers, and a histogram
LEADING = ("max_attn_logit", "attn_entropy_ratio", "resid_rms", "resid_grad_norm", "update_rms", "grad_norm_clipped")
MORE = 2


@dataclass(frozen=True)
class Plan:
    """The tags of one array, and how their values come about.

    Attributes:
        statistics: which of ``max min median worst``, in the order of the tags; the worrying end first.
        tags: of the statistics, then of the layers.
        layers: entries of the first axis that have a tag.
        window, window_tag: the worst value over growing windows.
        histogram: the tag of a histogram over all entries, empty where there is none.
    """

    metric: str
    worse: Worse
    statistics: tuple[str, ...]
    tags: tuple[str, ...]
    layers: Int[np.ndarray, " layer"] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    window: Window | None = None
    window_tag: str = ""
    histogram: str = ""

    def values(self, array: np.ndarray) -> list[float]:
        """One value a tag; NaN where nothing was observed."""
        rows = array.reshape(len(array), math.prod(array.shape[1:])) if array.ndim else array.reshape(1, 1)
        seen = rows[~np.isnan(rows)]
        if not seen.size:
            return [math.nan] * len(self.tags)
        worst = (np.fmax if self.worse == "high" else np.fmin).reduce(rows, axis=1)
        layers = [float(worst[i]) if i < len(worst) else math.nan for i in self.layers]
        return [_statistic(name, seen, worst, self.worse) for name in self.statistics] + layers

    def descriptions(self, definition: str) -> list[str]:
        """What each tag holds, for people."""
        worst = "largest" if self.worse == "high" else "smallest"
        texts = {"max": "largest value", "min": "smallest value", "median": "median", "worst": f"where it is {worst}"}
        out = [texts[name] for name in self.statistics] + [f"{worst} value of entry {i}" for i in self.layers]
        return [f"{text}; {definition}" if definition else text for text in out]

    def margin(self) -> tuple[tuple[str, str, str], tuple[str, ...]] | None:
        """Tags of the least, middle and largest value, where all three are kept, and of the sampled layers."""
        tag = dict(zip(self.statistics, self.tags, strict=False))
        ends = tag.keys() >= {"min", "median", "max"}
        return ((tag["min"], tag["median"], tag["max"]), self.tags[len(self.statistics):]) if ends else None


def _statistic(name: str, seen: np.ndarray, worst: np.ndarray, worse: Worse) -> float:
    if name == "worst":
        return float(np.nanargmax(worst) if worse == "high" else np.nanargmin(worst))
    if name == "median":
        return float(np.median(seen))
    return float(seen.max() if name == "max" else seen.min())


@dataclass
class Planner:
    """Decides which tags an array gets, when it is first seen.

    Attributes:
        origin: first step of the run.
        expected: how many metrics share the budget.
    """

    tags: Tags
    origin: int
    expected: int = 1
    header: Header = field(default_factory=Header)
    _main: set[str] = field(default_factory=set)

    def plan(self, name: str, shape: tuple[int, ...]) -> Plan:
        """The plan of an array; a metric's arrays after its first get their worst value alone.

        Args:
            name: as ``max_attn_logit/attention_head``.
            shape: of the array.
        """
        metric, _, axes = name.partition("/")
        meta = self.header.metrics.get(metric)
        worse: Worse = meta.worse if meta else "high"
        extreme = "max" if worse == "high" else "min"
        if not shape:
            return Plan(metric, worse, (extreme,), (self.tags.claim(tag_of(name)),))
        if metric in self._main:
            return Plan(metric, worse, (extreme,), (self.tags.claim(f"{clean(metric)}/{clean(axes)}_{extreme}"),))
        self._main.add(metric)
        return self._plan_main(metric, self._where(axes), shape[0], worse)

    def _plan_main(self, metric: str, where: str, size: int, worse: Worse) -> Plan:
        """As much as the metric's share of the budget allows, in order of use."""
        slots = max(1, BUDGET // self.expected)
        ends = ("max", "min") if worse == "high" else ("min", "max")
        statistics = (*ends, "median", "worst")[:slots]
        leading = metric in LEADING and slots >= 5
        layers = _spread(size, min(LAYERS, max(0, slots - 5) + MORE * leading))
        width = len(str(max(0, size - 1)))
        leaves = [f"worst_{where}" if s == "worst" else s for s in statistics]
        leaves += [f"{where}_{layer:0{width}d}" for layer in layers]
        tags = tuple(self.tags.claim(f"{clean(metric)}/{leaf}") for leaf in leaves)
        if slots < 5:
            return Plan(metric, worse, statistics, tags, layers)
        window = Window(self.origin, low=worse == "low")
        histogram = self.tags.claim(f"{clean(metric)}/histogram") if leading else ""
        return Plan(metric, worse, statistics, tags, layers, window, self.tags.claim(f"{tags[0]}_{ends[0]}"), histogram)

    def _where(self, axes: str) -> str:
        """What an entry of the first axis is called: attention calls are layers where each layer has one."""
        first = axes.split("_")[0] or "entry"
        labels = self.header.labels
        one_each = len(labels.get("attention", ())) == len(labels.get("layer", ()))
        return "layer" if first == "attention" and one_each else clean(first)


def _spread(size: int, count: int) -> Int[np.ndarray, " entry"]:
    """Up to ``count`` entries of an axis, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).round().astype(np.int64))
