"""What a ledger says in words and signs, whatever it is written to."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from stabilitylens.reports._words import number
from stabilitylens.reproductions._claim import Expect
from stabilitylens.reproductions._ledger import Ledger
from stabilitylens.reproductions._verdict import Outcome, Verdict

VERDICTS: tuple[Verdict, ...] = ("reproduced", "partly", "not reproduced", "mis-stated", "not run")
#: characters of a strip
STRIP = 21


def digits(value: float, count: int) -> str:
    """As :func:`number` writes it with three significant digits, with more of them."""
    if count == 3 or not math.isfinite(value):
        return number(value)
    return f"{float(f'{value:.{count}g}'):,.{max(count, 15)}g}" if 1 <= abs(value) < 1e15 else f"{value:.{count}g}"


def bound(value: float) -> str:
    """With as many digits as it has, up to ten: a bound is never rounded to another one."""
    return next((text for text in (digits(value, n) for n in range(3, 10)) if _read(text) == value), digits(value, 10))


def beside(value: float, expect: Expect) -> str:
    """With three digits, or as many more as it takes to be on the same side of both bounds as the value is."""
    bounds = [_read(bound(b)) for b in (expect.low, expect.high)]
    sides = [(value > b, value < b) for b in bounds]
    shown = (digits(value, n) for n in range(3, 18))
    return next((text for text in shown if [(_read(text) > b, _read(text) < b) for b in bounds] == sides), f"{value:,.17g}")


def _read(text: str) -> float:
    return float(text.replace(",", ""))


def expected(expect: Expect) -> str:
    """The range: ``-0.05 … 0.05``, ``≥ 10,000``, ``≤ 100``, ``65,536``."""
    low, high = bound(expect.low), bound(expect.high)
    if expect.low == expect.high:
        return low
    if math.isinf(expect.low):
        return f"≤ {high}"
    return f"≥ {low}" if math.isinf(expect.high) else f"{low} … {high}"


def measured(outcome: Outcome) -> str:
    """The median over seeds and, where there are several, the smallest and largest."""
    values = [v for v in outcome.values if not math.isnan(v)]
    if not values:
        return "not observed"
    middle, *spread = (beside(float(v), outcome.expect) for v in (np.median(values), min(values), max(values)))
    lost = f", {len(outcome.values) - len(values)} not observed" if len(values) < len(outcome.values) else ""
    return middle + (f" ({spread[0]} … {spread[1]})" if spread[0] != spread[1] else "") + lost


def agreement(outcome: Outcome) -> str:
    """``yes``, ``no``, or for how many seeds."""
    if outcome.always:
        return "yes"
    return f"{outcome.held} of {len(outcome.values)} seeds" if outcome.held else "no"


def plans(ledger: Ledger) -> str:
    """Which plans were run, and at which width."""
    return f"{ledger.mode} plans" + (f" with models up to {ledger.scale} wide" if ledger.scale else "")


def tally(ledger: Ledger) -> str:
    """How many claims came to which verdict."""
    counts = Counter(entry.verdict for entry in ledger.entries)
    return ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])


def scale_of(outcome: Outcome) -> tuple[float, float, bool]:
    """Ends of an axis that shows the range and the seeds, and whether it is logarithmic."""
    shown = [v for v in (*outcome.values, outcome.expect.low, outcome.expect.high) if math.isfinite(v)]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    if low > 0 and high / low > 50:
        return low / 2, high * 2, True
    margin = 0.15 * (high - low) or 0.15 * abs(high) or 1.0
    return low - margin, high + margin, False


def place(value: float, scale: tuple[float, float, bool]) -> float:
    """Where a value stands on the axis, from 0 to 1; beyond its ends at them."""
    low, high, log = scale
    if math.isinf(value) or (log and value <= 0):
        return float(value > 0)
    share = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
    return min(1.0, max(0.0, share))


def strip(outcome: Outcome) -> str:
    """The range as a bar and the seeds as dots on it, or beside it."""
    scale = scale_of(outcome)
    at = [round(place(v, scale) * (STRIP - 1)) for v in (outcome.expect.low, outcome.expect.high)]
    cells = ["━" if at[0] <= i <= at[1] else "·" for i in range(STRIP)]
    for value in outcome.values:
        if not math.isnan(value):
            cells[round(place(value, scale) * (STRIP - 1))] = "●"
    return "".join(cells)
