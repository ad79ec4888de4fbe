"""Which column of a table without names is the loss: by how it behaves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

#: fewer points show no behaviour
FEW = 8
#: a schedule, a clock and a count bend less than this share of their range from point to point; a loss has noise. *Heuristic*.
SMOOTH = 2e-3
#: cross entropies, errors and their like are below this; counts and speeds are above. *Heuristic*.
LARGEST = 100.0


def behaves(columns: Mapping[str, Float[np.ndarray, " row"]]) -> str | None:
    """The column that behaves most like a loss, the first of equals; None where none does.

    A loss has noise, falls, and is neither negative nor large. A column that never moves is none, nor is one that only
    rises. Where all columns are smooth, one that falls from above 0.1 is taken: a learning rate is below.

    Args:
        columns: the columns beside the steps, in the order of the table; NaN where a row has none.
    """
    worth = {key: _worth(values[np.isfinite(values)]) for key, values in columns.items()}
    best = max(worth, key=lambda key: worth[key], default=None)
    return best if best is not None and worth[best] > (0, 0, 0) else None


def _worth(values: Float[np.ndarray, " row"]) -> tuple[int, int, int]:
    """Whether it can be a loss at all, then whether it has noise, and whether it falls and has the size of one."""
    if len(values) < FEW or np.ptp(values) == 0 or (np.diff(values) >= 0).all():
        return 0, 0, 0
    tenth = max(len(values) // 10, 2)
    begin, end = np.median(values[:tenth]), np.median(values[-tenth:])
    noisy = np.median(np.abs(np.diff(values, 2))) > SMOOTH * np.ptp(values)
    falls, sized = end < begin, values.min() >= 0 and begin < LARGEST
    if not noisy and not (falls and begin > 0.1):
        return 0, 0, 0
    return 1, int(noisy), int(falls) + int(sized)
