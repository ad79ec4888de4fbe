"""What rules read from a run: one metric at one place, over the steps at which it was observed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.findings import Where
from stabilitylens.rules._rule import Evidence, Lacks
from stabilitylens.run import INITIAL, Run, Series

#: heuristic: samples whose median is the present level, so that a single one decides nothing
RECENT = 5
#: heuristic: samples whose median is the level at the start
EARLY = 3
#: heuristic: the least that a start, an end and a trend between them can be told from
MIN_SAMPLES = 8


@dataclass(frozen=True)
class Track:
    """One metric at one place; no value is NaN, an infinite one may be."""

    where: Where
    steps: Int[np.ndarray, " step"]
    values: Float[np.ndarray, " step"]

    @property
    def early(self) -> float:
        """Median of the first samples."""
        return float(np.median(self.values[:EARLY]))

    @property
    def level(self) -> float:
        """Median of the last samples."""
        return float(np.median(self.values[-RECENT:]))

    @property
    def smooth(self) -> Float[np.ndarray, " step"]:
        """Running median of three, which a single sample cannot move."""
        before = np.concatenate((self.values[:1], self.values[:-1]))
        after = np.concatenate((self.values[1:], self.values[-1:]))
        low, high = np.minimum(before, after), np.maximum(before, after)
        return np.asarray(np.clip(self.values, low, high))

    def first(self, threshold: float, *, above: bool = True) -> int:
        """The step at which the threshold was first passed for longer than a sample; the first step if never."""
        past = self.smooth > threshold if above else self.smooth < threshold
        return int(self.steps[np.argmax(past)])

    def since(self, threshold: float, *, above: bool = True) -> Where:
        """The place, with the steps from where the threshold was first passed to the end."""
        return replace(self.where, steps=(self.first(threshold, above=above), int(self.steps[-1])))


def recorded(evidence: Evidence) -> Run:
    """The run of the evidence.

    Raises:
        Lacks: there is none.
    """
    if evidence.run is None:
        raise Lacks("a recorded run")
    return evidence.run


def sampled(run: Run, name: str, least: int = MIN_SAMPLES) -> Series:
    """A series of the run, by name.

    Raises:
        Lacks: it is missing, or has nowhere ``least`` observed samples; at initialisation one is enough.
    """
    least = 1 if run.format == INITIAL else least
    reason = run.why_missing(name)
    if reason is not None:
        raise Lacks(reason)
    series = run[name]
    most = int(np.max(np.count_nonzero(~np.isnan(series.values), axis=0)))
    if most < least:
        raise Lacks(f"{name} has {most} samples, fewer than the {least} needed")
    return series


def arrays(run: Run, name: str, least: int = MIN_SAMPLES) -> Iterator[Series]:
    """Every observed array of a metric, e.g. by layer and by group.

    Raises:
        Lacks: none has ``least`` observed samples anywhere.
    """
    keys = [key for key in run if key.partition("/")[0] == name and run[key].axes and run[key].observed()]
    lacking = []
    for key in keys or [name]:
        try:
            yield sampled(run, key, least)
        except Lacks as missing:
            lacking.append(str(missing))
    if len(lacking) == len(keys or [name]):
        raise Lacks("; ".join(lacking))


def levels(series: Series) -> Float[np.ndarray, "*axes"]:
    """Median of the last samples in which anything was observed; NaN where a place was not."""
    rows: list[Float[np.ndarray, "*axes"]] = []
    for row in series.values[::-1]:
        if len(rows) == RECENT:
            break
        if not np.all(np.isnan(row)):
            rows.append(row)
    return median(np.asarray(rows, dtype=np.float64), 0)


def median(values: Float[np.ndarray, "..."], axis: int | tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """Median of what is not NaN along some axes; NaN where nothing is."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis), dtype=np.float64)


def track(run: Run, series: Series, index: tuple[int, ...]) -> Track:
    """What was observed at one place."""
    everything: tuple[slice | int, ...] = (slice(None), *index)
    values = np.asarray(series.values[everything], dtype=np.float64)
    seen = ~np.isnan(values)
    return Track(place(run, series, index), series.steps[seen], values[seen])


def place(run: Run, series: Series, index: tuple[int, ...]) -> Where:
    """The layer, its name and the head that an index of an array stands for."""
    at = dict(zip(series.axes, index, strict=False))
    head = at.get("head", at.get("kv_head"))
    for axis in ("layer", "attention", "group"):
        if axis in at:
            labels = series.labels.get(axis) or run.header.labels.get(axis, ())
            label = labels[at[axis]] if at[axis] < len(labels) else None
            layer = at[axis] if axis == "layer" else _block(run, label, at[axis]) if axis == "attention" else None
            return Where(layer, label, head)
    return Where(head=head)


def _block(run: Run, label: str | None, call: int) -> int | None:
    """The block that holds an attention call: by its module's name, else as the anatomy has it."""
    blocks = run.header.labels.get("layer", ())
    inside = [i for i, block in enumerate(blocks) if label is not None and f"{label}.".startswith(f"{block}.")]
    if inside:
        return inside[-1]
    calls = run.header.anatomy.attention_calls if run.header.anatomy is not None else ()
    return calls[call].layer if call < len(calls) else call
