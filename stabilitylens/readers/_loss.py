"""Which series is the loss: by name, then by how the candidates behave."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from stabilitylens.readers._names import loss_rank

#: a candidate with fewer than this share of the points of another of its kind is a summary. *Heuristic*.
SUMMARY = 0.05
#: ranks from here on are losses of training; below are those of evaluation
TRAINED = 45
#: ranks from here on are losses of the whole model, not of one part or head
WHOLE = 80


def choose_loss(columns: Mapping[str, Float[np.ndarray, " point"]]) -> str | None:
    """The key of the loss among columns of numbers; None where none can be it.

    The best name wins (see ``loss_rank``), except that a summary does not win over a series, a series that is nowhere
    finite not over one of the whole model that is, and evaluation not over training.
    """
    ranks = {key: rank for key in columns if len(columns[key]) and (rank := loss_rank(key)) > 0}
    trained = {key: rank for key, rank in ranks.items() if rank >= TRAINED}
    evaluated = {key: rank for key, rank in ranks.items() if rank < TRAINED}
    most = {group: max((len(columns[key]) for key in some), default=0) for group, some in ((1, trained), (0, evaluated))}
    candidates = trained if most[1] > (2 if most[0] > 10 else 0) else evaluated or trained
    longest = max((len(columns[key]) for key in candidates), default=0)
    candidates = {key: rank for key, rank in candidates.items() if len(columns[key]) >= SUMMARY * longest}
    finite = {key for key in candidates if np.isfinite(columns[key]).any()}
    if any(rank >= WHOLE for key, rank in candidates.items() if key in finite):
        candidates = {key: rank for key, rank in candidates.items() if key in finite}
    return max(candidates, key=lambda key: candidates[key], default=None)
