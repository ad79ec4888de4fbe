"""How far a number stands above others of its kind, in their own noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from stabilitylens.incidents._online import MAD


def sigma_above(value: float, others: Iterable[float], floor: float) -> float:
    """Robust z-score of a logarithm: distance from the median over 1.4826 times the median absolute deviation.

    Args:
        value: a positive number; one that is not finite is infinitely far, zero and less are nowhere.
        others: what it is compared with; what is not positive or not finite is left out.
        floor: least noise of a logarithm that is assumed.

    Returns:
        NaN where there is nothing to compare with.
    """
    known = [math.log(x) for x in others if x > 0 and math.isfinite(x)]
    if not known:
        return math.nan
    if not math.isfinite(value):
        return math.inf
    if value <= 0:
        return 0.0
    level = median(known)
    noise = MAD * median(abs(x - level) for x in known)
    return (math.log(value) - level) / max(noise, floor)
