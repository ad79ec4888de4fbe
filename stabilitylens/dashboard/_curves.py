"""Curves of one value a step, thinned to the screen without losing a peak."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.dashboard._maps import packed
from stabilitylens.reports._envelope import envelope


def curve(
    steps: Int[np.ndarray, " step"], values: Float[np.ndarray, " step"], first: int, last: int, columns: int
) -> dict[str, Any]:
    """Lowest and highest point of each column at their own steps, packed float64; what is not finite stays as it is."""
    low, high = np.searchsorted(steps, [first, last + 1]).tolist()
    x, y = envelope(steps[low:high], values[low:high].astype(np.float64), max(1, columns))
    return {"x": packed(x.astype("<f8")), "y": packed(y.astype("<f8")), "points": high - low}
