"""Finds the rows of a log that sum up an epoch, between rows of single steps that carry the same names."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.readers._large import count, every, where
from stabilitylens.readers._names import EPOCHS, normal, step_rank
from stabilitylens.readers._places import among, at_places, same
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
        if same(rows, column.rows()):
            continue
        counted = among(rows, column.rows())
        if not max(FEW, SHARE * len(rows)) <= count(np.asarray, counted) < len(rows) or not counted[0]:
            continue
        if every(np.logical_or, counted[:-1], counted[1:]) and _moves(column.values()):
            return at_places(rows, where(np.logical_not, counted))
    return np.zeros(0, dtype=np.int64)


def _moves(values: Float[np.ndarray, " row"]) -> bool:
    return not every(lambda some: (some == values[0]) | (np.isnan(some) & np.isnan(values[0])), values)
