"""Every step's scalars of all processes, packed with the next sample: losses averaged, gradients added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

#: so many steps wait at most; processes come together that often even where they sample less
RING = 64
_FIELDS = ("loss", "loss_n", "grad_norm", "grad_norm_n", "grad_norm_clipped", "grad_norm_clipped_n")
Waiting = list[tuple[int, dict[str, float]]]


def pack(ring: Sequence[tuple[int, Mapping[str, float]]]) -> Float[np.ndarray, " entry"]:
    """The scalars of the steps that wait, to be added up; norms as squares."""
    table = np.zeros((RING, len(_FIELDS)))
    for row, (_, numbers) in zip(table, ring[-RING:], strict=False):
        for i in range(0, len(_FIELDS), 2):
            value = numbers.get(_FIELDS[i])
            if value is not None:
                row[i : i + 2] = value if i == 0 else value**2, 1
    return table.reshape(-1)


def unpack(flat: Float[np.ndarray, " entry"], own: Sequence[tuple[int, Mapping[str, float]]], owners: int) -> Waiting:
    """The scalars of the whole, in place of this process's own.

    Args:
        flat: what :func:`pack` gave, added up over the processes.
        own: the steps that waited here.
        owners: processes that own gradients; a norm to which fewer contributed is NaN.
    """
    out: Waiting = []
    for row, (step, numbers) in zip(flat.reshape(RING, -1), own[-RING:], strict=False):
        whole = {name: v for name, v in numbers.items() if name not in _FIELDS}
        if row[1]:
            whole["loss"] = float(row[0] / row[1])
        for i in (2, 4):
            if row[i + 1]:
                whole[_FIELDS[i]] = float(np.sqrt(row[i])) if row[i + 1] >= owners else float("nan")
        out.append((step, whole))
    return out


def without_gradients(ring: Waiting) -> Waiting:
    """The steps without norms of gradients, of which this process may have only a part."""
    return [(step, {n: v for n, v in numbers.items() if not n.startswith("grad_norm")}) for step, numbers in ring]


def first_bad_loss(ring: Waiting) -> float:
    """The first step that waits whose loss is not finite; 0 for none."""
    return float(next((step for step, numbers in ring if not np.isfinite(numbers.get("loss", 0.0))), 0))
