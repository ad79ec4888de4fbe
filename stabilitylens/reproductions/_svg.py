"""One picture a claim: curves of its arms where it has an x axis, else ranges with the seeds on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from stabilitylens.reports._words import number
from stabilitylens.reproductions._claim import Picture
from stabilitylens.reproductions._ledger import Entry
from stabilitylens.reproductions._verdict import Outcome
from stabilitylens.reproductions._words import expected, place, scale_of

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 260, 64, 130, 34, 40
#: height of a line of text, and how many characters it takes
LINE, CHARACTERS = 14, 92
#: at most so many round numbers on an axis
TICKS = 5
#: Okabe and Ito's colours, told apart by colour-blind readers too
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def draw(entry: Entry) -> str:
    """The picture of an entry as SVG."""
    return _curves(entry, entry.picture) if entry.picture is not None else _ranges(entry)


def _element(tag: str, content: str = "", **attributes: str | float) -> str:
    given = {k.replace("_", "-"): f"{v:.1f}" if isinstance(v, float) else str(v) for k, v in attributes.items()}
    return f"<{tag} {' '.join(f'{k}={quoteattr(v)}' for k, v in given.items())}>{content}</{tag}>"


def _text(x: float, y: float, text: str, anchor: str = "start", fill: str = "#444") -> str:
    return _element("text", escape(text), x=float(x), y=float(y), text_anchor=anchor, fill=fill)


def _whole(height: int, parts: Sequence[str]) -> str:
    ground = _element("rect", width=WIDTH, height=height, fill="white")
    size: dict[str, str | float] = {"viewBox": f"0 0 {WIDTH} {height}", "width": WIDTH, "height": height}
    font: dict[str, str | float] = {"font_family": "sans-serif", "font_size": 11}
    return _element("svg", "".join([ground, *parts]), xmlns="http://www.w3.org/2000/svg", **size, **font) + "\n"


#: x, and the smallest value, median and largest value over seeds
Point = tuple[float, float, float, float]


def _arms(entry: Entry, name: str) -> dict[str, list[Point]]:
    """The points of each arm by rising x; what is not finite has no place in a curve."""
    arms: dict[str, list[Point]] = {}
    for cell, numbers in entry.cells.items():
        arm, _, x = cell.partition("@")
        middle = float(np.median(numbers[name]))
        if math.isfinite(middle):
            seen = [y for y in numbers[name] if math.isfinite(y)]
            arms.setdefault(arm, []).append((float(x), min(seen), middle, max(seen)))
    return {arm: sorted(points) for arm, points in arms.items()}


def _axis(values: Sequence[float], log: bool) -> tuple[float, float, bool]:
    low, high = min(values), max(values)
    if log and low > 0:
        return (low, high if high > low else 2 * low, True)
    margin = 0.08 * (high - low) or 1.0
    return (low - margin, high + margin, False)


def _ticks(scale: tuple[float, float, bool]) -> list[float]:
    """Round numbers within an axis: powers of ten, where a logarithmic one has two of them, else multiples of 1, 2 or 5."""
    low, high, log = scale
    decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1) if log else range(0)
    if len(decades) > 1:
        return [10.0**k for k in decades[:: math.ceil(len(decades) / TICKS)]]
    least = (high - low) / TICKS
    unit = 10.0 ** math.floor(math.log10(least))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= least)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _curves(entry: Entry, picture: Picture) -> str:
    arms = _arms(entry, picture.number)
    points = [p for curve in arms.values() for p in curve]
    if not points:
        return _ranges(entry)
    sx, sy = _axis([x for x, *_ in points], True), _axis([y for _, *ys in points for y in ys], picture.log_y)
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def xy(x: float, y: float) -> tuple[float, float]:
        return LEFT + across * place(x, sx), TOP + up * (1 - place(y, sy))

    out = []
    for tick in _ticks(sy):
        _, y = xy(sx[0], tick)
        out += [_element("path", d=f"M{LEFT} {y:.1f}h{across}", stroke="#ddd"), _text(LEFT - 6, y + 4, number(tick), "end")]
    for tick in sorted({x for x, *_ in points}):
        out.append(_text(xy(tick, sy[0])[0], HEIGHT - BOTTOM + 16, number(tick), "middle"))
    out += [_text(LEFT + across / 2, HEIGHT - 6, picture.x, "middle"), _text(4, 14, picture.y)]
    for i, (arm, curve) in enumerate(arms.items()):
        colour, places = COLOURS[i % len(COLOURS)], [xy(x, middle) for x, _, middle, _ in curve]
        if any(low < high for _, low, _, high in curve):
            around = [xy(x, low) for x, low, _, _ in curve] + [xy(x, high) for x, _, _, high in reversed(curve)]
            out.append(_element("path", d=f"M{_path(around)}Z", fill=colour, fill_opacity="0.18", stroke=colour, stroke_opacity="0.18"))
        out.append(_element("path", d=f"M{_path(places)}", fill="none", stroke=colour, stroke_width=2))
        out += [_element("circle", cx=x, cy=y, r=3, fill=colour) for x, y in places]
        out.append(_text(WIDTH - RIGHT + 10, TOP + 14 + 16 * i, arm, fill=colour))
    return _whole(HEIGHT, out)


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _ranges(entry: Entry) -> str:
    out, y = [], 10
    for outcome in entry.outcomes:
        for line in wrap(f"{outcome.expect.text}: expected {expected(outcome.expect)}", CHARACTERS):
            y += LINE
            out.append(_text(20, y, line))
        out += _strip(outcome, y + LINE)
        y += 3 * LINE
    return _whole(y + 10, out)


def _strip(outcome: Outcome, y: int) -> list[str]:
    """The expected range, the seeds on it or beside it, and what its ends are."""
    scale = scale_of(outcome)
    low, high = (20 + (WIDTH - 40) * place(v, scale) for v in (outcome.expect.low, outcome.expect.high))
    out = [
        _element("path", d=f"M20 {y}h{WIDTH - 40}", stroke="#ddd", stroke_width=8),
        _element("path", d=f"M{low:.1f} {y}H{max(high, low + 2):.1f}", stroke="#9cc9a3", stroke_width=8),
        _text(20, y + 18, number(scale[0]), fill="#888"),
        _text(WIDTH - 20, y + 18, number(scale[1]), "end", "#888"),
    ]
    for value in outcome.values:
        if not math.isnan(value):
            colour = COLOURS[0] if outcome.expect.holds(value) else COLOURS[1]
            out.append(_element("circle", cx=20 + (WIDTH - 40) * place(value, scale), cy=y, r=4, fill=colour))
    return out
