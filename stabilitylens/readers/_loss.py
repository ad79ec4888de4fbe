"""Which series is the loss: by name, then by how the candidates behave."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from stabilitylens.readers._large import count, every
from stabilitylens.readers._names import STAND_INS, loss_rank, normal

#: a candidate with fewer than this share of the points of another of its kind is a summary. *Heuristic*.
SUMMARY = 0.05
#: ranks from here on are losses of training; below are those of evaluation
TRAINED = 45
#: a stand-in has at least so many points
FEW = 3
#: ranks from here on are losses of the whole model, not of one part or head
WHOLE = 80
#: what a tenth of the points costs a loss of the whole model in rank. *Heuristic*.
SPARSE = 25.0
#: a series is no divergence or distance if more than this share of it is negative. *Heuristic*.
NEGATIVE = 0.1


def choose_loss(columns: Mapping[str, Float[np.ndarray, " point"]]) -> str | None:
    """The key of the loss among columns of numbers; None where none can be it.

    The best name wins (see ``loss_rank``), except that a summary does not win over a series, a series that is nowhere
    finite not over one of the whole model that is, and evaluation not over training. Among losses of the whole model that with
    more points is worth more, and of equals one that is not negative. Without any, a perplexity or an error stands in.
    """
    ranks = {key: rank for key in columns if len(columns[key]) and (rank := loss_rank(key)) > 0}
    trained = {key: rank for key, rank in ranks.items() if rank >= TRAINED}
    evaluated = {key: rank for key, rank in ranks.items() if rank < TRAINED}
    most = {group: max((len(columns[key]) for key in some), default=0) for group, some in ((1, trained), (0, evaluated))}
    candidates = trained if most[1] > (2 if most[0] > 10 else 0) else evaluated or trained
    longest = max((len(columns[key]) for key in candidates), default=0)
    candidates = {key: rank for key, rank in candidates.items() if len(columns[key]) >= SUMMARY * longest}
    finite = {key for key in candidates if not every(lambda some: ~np.isfinite(some), columns[key])}
    if any(rank >= WHOLE for key, rank in candidates.items() if key in finite):
        candidates = {key: rank for key, rank in candidates.items() if key in finite}
    if not candidates:
        return _stand_in(columns)
    longest = max(len(columns[key]) for key in candidates)
    return max(candidates, key=lambda key: (_worth(candidates[key], len(columns[key]), longest), _is_positive(columns[key])))


def _worth(rank: int, points: int, longest: int) -> float:
    """The rank of a loss; one of the whole model with fewer points than another is worth less."""
    return rank - SPARSE * np.log10(longest / points) if rank >= WHOLE else rank


def _is_positive(values: Float[np.ndarray, " point"]) -> bool:
    return count(lambda some: some < 0, values) <= NEGATIVE * len(values)


def _stand_in(columns: Mapping[str, Float[np.ndarray, " point"]]) -> str | None:
    """What is minimised and not called a loss, as a perplexity; None where nothing is."""
    found = {key: STAND_INS.index(name) for key in columns if len(columns[key]) >= FEW and (name := normal(key)) in STAND_INS}
    return min(found, key=lambda key: found[key], default=None)
