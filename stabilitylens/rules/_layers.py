"""From findings at many places to a few that a person reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stabilitylens.findings import SEVERITIES, Where
from stabilitylens.rules._rule import Fired

#: heuristic: layers that get a finding of their own; where more fire, the worst one names the others
SHOWN = 4


def per_layer(found: Iterable[Fired]) -> list[Fired]:
    """At most one finding a layer, most severe first.

    Args:
        found: findings at any number of places, the worst first among those of one severity.

    Returns:
        One for each layer where at most four fired, else the worst alone, its message naming the rest.
    """
    first: dict[tuple[int | None, str | None], Fired] = {}
    for f in sorted(found, key=lambda f: -SEVERITIES[f.severity]):
        first.setdefault((f.where.layer, f.where.layer_name), f)
    worst = list(first.values())
    if len(worst) <= SHOWN:
        return worst
    others = [f.where for f in worst[1:]]
    return [replace(worst[0], message=f"{worst[0].message}; and in {len(others)} more: {names(others)}")]


def names(places: list[Where]) -> str:
    """E.g. ``layers 0, 2 to 5, embedding``."""
    numbers = sorted({p.layer for p in places if p.layer is not None})
    spans = ", ".join(_spans(numbers))
    modules = ", ".join(p.layer_name for p in places if p.layer is None and p.layer_name)
    layers = f"layer{'s' if len(numbers) > 1 else ''} {spans}" if numbers else ""
    return ", ".join(part for part in (layers, modules) if part)


def _spans(numbers: list[int]) -> list[str]:
    spans: list[list[int]] = []
    for n in numbers:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return [f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in spans]


def at(where: Where) -> str:
    """The place without the steps, e.g. ``layer 2, head 1``; the module's name outside the blocks."""
    return str(replace(where, steps=None))


def number(value: float) -> str:
    """Three digits for a person: ``0.0123``, ``5.4``, ``22,400``."""
    if 1000 <= abs(value) < 1e7:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
