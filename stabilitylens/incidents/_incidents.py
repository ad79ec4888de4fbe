"""From an event on a curve to an incident with its sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stabilitylens.findings import Severity
from stabilitylens.incidents._analysis import Analysis, analysis
from stabilitylens.incidents._event import Event
from stabilitylens.incidents._incident import Incident, Kind, Recovery
from stabilitylens.incidents._sieve import GLARING
from stabilitylens.run import Run, Series

#: recovered spikes in public logs are down to 10 % after 2 to 7 logs, up to 25
FAST = 7
#: the level after a spike is taken over this many points. *Heuristic*.
AFTER = 25
#: still this share of its height up: it came back only in part. *Heuristic*.
IN_PART = 0.25
#: noise that has this many points as high, in one of fifty runs, is worth mentioning. *Heuristic*.
COMMON = 0.02
#: and noise that has as many is none. *Heuristic*: one run in a hundred has them.
UNLIKELY = 0.01


def _recovery(found: Analysis, event: Event) -> Recovery:
    z = found.curve.z
    height = z[event.peak] - event.base
    if not event.back:
        return "partial" if z[event.end] - event.base < 0.5 * height else "none"
    if float(np.median(z[event.end + 1 : event.end + 1 + AFTER])) - event.base > IN_PART * height:
        return "partial"
    return "fast" if event.end - event.start < FAST else "slow"


def _steps_lost(found: Analysis, event: Event) -> int:
    steps = found.curve.steps
    return int(steps[min(event.end + 1, len(steps) - 1)] - steps[event.start])


def _when(start: int, peak: int) -> str:
    """From its first step to its highest."""
    return f"at step {peak}" if peak <= start else f"from step {start} to step {peak}"


def _ending(event: Event, cost: int, recovery: Recovery) -> str:
    if not event.back:
        return "and had not come back by the end of the record"
    return f"and was back after {cost} step{'s' * (cost != 1)}" + (", in part" if recovery == "partial" else "")


def _alike(event: Event, points: int) -> str:
    """What the run's own noise says to a high point."""
    if event.alike < COMMON:
        return ""
    return f"; its noise alone has about {event.alike:.1g} so high in {points} points"


def _again(found: Analysis, event: Event) -> str:
    """At what interval the same comes again, and what explains the event."""
    if event.every is None:
        return f"; {event.reason}" if event.reason else ""
    steps = found.curve.steps
    every = event.every * float(steps[-1] - steps[0]) / max(1, len(steps) - 1)
    return f"; the like comes every {every:.4g} steps: {event.reason or 'that points to the order of the data'}"


def incident(found: Analysis, event: Event, metric: str, kind: Kind, severity: Severity) -> Incident:
    """An event as an incident, with one sentence that says what happened."""
    curve, cost, recovery = found.curve, _steps_lost(found, event), _recovery(found, event)
    low, high = curve.level(event.base), float(curve.values[event.peak])
    return Incident(
        kind=kind,
        metric=metric,
        start_step=int(curve.steps[event.start]),
        end_step=int(curve.steps[event.end]),
        start_index=int(curve.index[event.start]),
        end_index=int(curve.index[event.end]),
        peak_step=int(curve.steps[event.peak]),
        peak_index=int(curve.index[event.peak]),
        width=event.width,
        magnitude=float(event.sigma),
        recovery=recovery,
        cost_steps=cost,
        severity=severity,
        confidence=float(min(1 - 0.5 / max(event.clarity, 1.0) ** 2, np.exp(-event.alike))),
        explanation=(
            f"{metric} rose from {low:.4g} to {high:.4g} ({high - low:+.3g}, {event.sigma:.0f} sigma) "
            f"{_when(int(curve.steps[event.start]), int(curve.steps[event.peak]))} "
            f"{_ending(event, cost, recovery)}{_alike(event, len(curve))}{_again(found, event)}."
        ),
    )


def plain(
    series: Series, metric: str, kind: Kind, first: int, last: int, severity: Severity, explanation: str, **other: Any
) -> Incident:
    """An incident that is a span of a series, without a height; ``other`` overrides what follows from the span."""
    steps = series.steps
    fields: dict[str, Any] = {
        "peak_step": int(steps[first]),
        "peak_index": first,
        "width": last - first + 1,
        "magnitude": float("nan"),
        "recovery": None,
        "cost_steps": int(steps[min(last + 1, len(steps) - 1)] - steps[first]),
        "confidence": 1.0,
    }
    return Incident(
        kind=kind,
        metric=metric,
        start_step=int(steps[first]),
        end_step=int(steps[last]),
        start_index=first,
        end_index=last,
        severity=severity,
        explanation=explanation,
        **fields | other,
    )


def of_kind(run: Run, kind: Kind, severity: Severity, metric: str = "loss", kinds: Iterable[Kind] = ()) -> list[Incident]:
    """The incidents of one kind on a series; ``kinds`` are the events that count as this kind."""
    found = analysis(run, metric)
    if found is None:
        return []
    wanted = set(kinds) or {kind}
    return [incident(found, event, metric, kind, _grave(event, severity, kind)) for event in found.events if event.kind in wanted]


def _grave(event: Event, severity: Severity, kind: Kind) -> Severity:
    """What is explained is for information; one high point is more where it is glaring and the noise does not have it."""
    if event.reason:
        return "info"
    glaring = kind == "outlier" and event.height >= GLARING and event.noise_known and event.alike < UNLIKELY
    return "warning" if glaring else severity
