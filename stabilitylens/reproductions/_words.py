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


def expected(expect: Expect) -> str:
    """The range: ``-0.05 … 0.05``, ``≥ 10,000``, ``≤ 100``, ``65``."""
    low, high = number(expect.low), number(expect.high)
    if expect.low == expect.high:
        return f"{expect.low:,.10g}"
    if math.isinf(expect.low):
        return f"≤ {high}"
    return f"≥ {low}" if math.isinf(expect.high) else f"{low} … {high}"


def measured(outcome: Outcome) -> str:
    """The median over seeds and, where there are several, the smallest and largest."""
    values = [v for v in outcome.values if not math.isnan(v)]
    if not values:
        return "not observed"
    middle = number(float(np.median(values)))
    spread = [number(min(values)), number(max(values))]
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
