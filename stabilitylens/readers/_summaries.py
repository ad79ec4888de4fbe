"""Finds the rows of a log that sum up an epoch, between rows of single steps that carry the same names."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from stabilitylens.readers._names import EPOCHS, normal, step_rank
from stabilitylens.readers._table import Table

#: name of a column of summaries
BY_EPOCH = "{} (by epoch)"
#: rows of single steps are at least this many, and this share. *Heuristic*.
FEW, SHARE = 3, 0.5


def summaries(table: Table, loss_key: str) -> Int[np.ndarray, " row"]:
    """The rows of the loss that lack the counter that the others have, each alone behind some of those."""
    rows = table.columns[loss_key].rows()
    for key, column in table.columns.items():
        if step_rank(key) is None or normal(key) in EPOCHS:
            continue
        counted = np.isin(rows, column.rows())
        if counted.all() or counted.sum() < max(FEW, SHARE * len(rows)) or not counted[0]:
            continue
        alone = counted[:-1] | counted[1:]
        if alone.all() and len(np.unique(column.values())) > 1:
            return rows[~counted]
    return rows[:0]
