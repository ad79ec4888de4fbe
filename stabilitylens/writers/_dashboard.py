"""What only TensorBoard needs: summaries of the arrays, worst values over windows, and the layout."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from stabilitylens.header import Header
from stabilitylens.incidents._online import OnlineDetector
from stabilitylens.tags import Tags
from stabilitylens.writers import _protobuf as protobuf
from stabilitylens.writers._append import Appender
from stabilitylens.writers._histogram import histogram
from stabilitylens.writers._layout import layout
from stabilitylens.writers._plan import Plan, Planner
from stabilitylens.writers._windows import Window

Arrays = Mapping[str, np.ndarray]


class Dashboard:
    """Adds to an event file what is derived from a run's scalars and arrays.

    Args:
        events: the file.
        tags: hands out the tags.
        origin: first step of the run.
    """

    def __init__(self, events: Appender, tags: Tags, origin: int) -> None:
        self._events = events
        self._tags = tags
        self._origin = origin
        self._planner = Planner(tags, origin)
        self._plans: dict[str, Plan] = {}
        self._windows: dict[str, tuple[str, Window]] = {}
        self._encoders: dict[tuple[str, ...], protobuf.ScalarEvent] = {}
        self._detector = OnlineDetector()
        self._scalars: set[str] = set()
        self._laid_out = False

    def header(self, header: Header) -> None:
        """Take the metrics' worrying ends and the labels from a header."""
        self._planner.header = header
        self._expect(sum(any(meta.axes) for meta in header.metrics.values()))

    def scalar(self, tag: str) -> None:
        """Take the tag of a scalar that the run has from now on."""
        self._scalars.add(tag)
        self._laid_out = False

    def watch(self, name: str, tag: str) -> None:
        """Give a scalar a tag with its largest values over growing windows."""
        self._windows[name] = self._tags.claim(f"{tag}_max"), Window(self._origin)

    def step(self, step: int, wall: float, scalars: Mapping[str, float]) -> None:
        """Take a step's scalars."""
        for name, (tag, window) in self._windows.items():
            if name in scalars and (point := window.add(step, float(scalars[name]))):
                self._point(tag, wall, *point)
        # the loss alone: judging gradient norms as well would double what a step costs
        if (loss := scalars.get("loss")) is not None:
            for kind in self._detector.update(float(loss), None):
                self._point(f"incidents/{kind}", wall, step, float(loss))

    def sample(self, step: int, wall: float, arrays: Arrays) -> None:
        """Take a sampled step's arrays."""
        self._plan(step, wall, arrays)
        plans = [self._plans[name] for name in arrays]
        with np.errstate(invalid="ignore"):
            values = [plan.values(array) for plan, array in zip(plans, arrays.values(), strict=True)]
        tags = tuple(tag for plan in plans for tag in plan.tags)
        if tags:
            encoder = self._encoders.get(tags) or self._describing(tags, plans)
            self._events.append(encoder.encode(step, wall, [v for some in values for v in some]))
        for plan, some, array in zip(plans, values, arrays.values(), strict=True):
            if plan.window and (point := plan.window.add(step, some[0])):
                self._point(plan.window_tag, wall, *point)
                if plan.histogram and (value := histogram(plan.histogram, array)):
                    self._events.append(protobuf.event(protobuf.DASHBOARD, step, wall, [value]))

    def close(self) -> None:
        """Write what the unfinished windows hold."""
        windows = [(plan.window_tag, plan.window) for plan in self._plans.values() if plan.window]
        for tag, window in [*self._windows.values(), *windows]:
            if point := window.flush():
                self._point(tag, time.time(), *point)

    def _describing(self, tags: tuple[str, ...], plans: list[Plan]) -> protobuf.ScalarEvent:
        """The encoder for the first event of these tags, which tells people what they are; the next ones do not."""
        self._encoders[tags] = protobuf.ScalarEvent(protobuf.DASHBOARD, tags, [b""] * len(tags))
        metrics = self._planner.header.metrics
        known = [(plan, metrics.get(plan.metric)) for plan in plans]
        texts = [text for plan, meta in known for text in plan.descriptions(meta.definition if meta else "")]
        metas = [protobuf.metadata(description=text, plugin="scalars") for text in texts]
        return protobuf.ScalarEvent(protobuf.DASHBOARD, tags, metas)

    def _point(self, tag: str, wall: float, step: int, value: float) -> None:
        if (tag,) not in self._encoders:
            self._encoders[(tag,)] = protobuf.ScalarEvent(protobuf.DASHBOARD, (tag,), (b"",))
        self._events.append(self._encoders[(tag,)].encode(step, wall, (value,)))

    def _expect(self, metrics: int) -> None:
        self._planner.expected = max(self._planner.expected, metrics)

    def _plan(self, step: int, wall: float, arrays: Arrays) -> None:
        """Plan what is new, and tell TensorBoard how to lay it out."""
        new = [name for name in arrays if name not in self._plans]
        if not new and self._laid_out:
            return
        self._expect(len({name.partition("/")[0] for name, array in arrays.items() if array.ndim}))
        self._plans |= {name: self._planner.plan(name, arrays[name].shape) for name in new}
        margins = [(plan.metric, *tags, plan.window_tag) for plan in self._plans.values() if (tags := plan.margin())]
        known = self._scalars.union(*(plan.tags for plan in self._plans.values()))
        self._events.append(protobuf.event(protobuf.DASHBOARD, step, wall, [layout(margins, known)]))
        self._laid_out = True
