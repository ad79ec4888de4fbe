"""Which rows of the incident's batch are unlike the others: by their own loss and their own gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stabilitylens.hooks.blackbox.everybody import gathered
from stabilitylens.hooks.blackbox.measuring import Measured, Measuring
from stabilitylens.hooks.blackbox.rerun import Rerun
from stabilitylens.hooks.blackbox.rows import row, row_count
from stabilitylens.hooks.blackbox.sigma import sigma_above

#: sigma above which a row is no ordinary one. *Heuristic*: one row in thousands, with the floor below.
UNLIKE = 6.0
#: least noise of a logarithm that is assumed between rows. *Heuristic*: losses of rows differ by a tenth at least.
FLOOR = 0.1
#: rows that are looked at in all processes together, of the incident's step and of the steps before
MOST, BEFORE = 256, 64


@dataclass(frozen=True)
class Row:
    """One row of the incident's batch, run by itself at the state before the step, without an update.

    Attributes:
        micro_batch, row: where it is, from 0. id: as the loop gave it, None where it gave none.
        rank: the process whose row it is, None where one trains alone.
        loss, grad_norm: its own; the second is None where it was not observed.
        loss_sigma, grad_sigma: how far above the other rows, or the rows of the steps before at the same state,
            whichever is further; NaN with nothing to compare with.
    """

    micro_batch: int
    row: int
    id: Any
    rank: int | None
    loss: float
    grad_norm: float | None
    loss_sigma: float
    grad_sigma: float

    @property
    def unlike(self) -> bool:
        """Whether it is no ordinary row."""
        return max(_known(self.loss_sigma), _known(self.grad_sigma)) > UNLIKE


@dataclass(frozen=True)
class Samples:
    """The rows of the incident's batch.

    Attributes:
        rows: all that were looked at, in order. before: rows of earlier steps that they were compared with.
        ordinary: none of them is unlike the others.
        sentence: for a person.
    """

    rows: tuple[Row, ...]
    before: int
    ordinary: bool
    sentence: str

    @property
    def unlike(self) -> list[Row]:
        """The rows that are no ordinary ones, the furthest first."""
        found = [r for r in self.rows if r.unlike]
        return sorted(found, key=lambda r: -max(_known(r.loss_sigma), _known(r.grad_sigma)))


def _known(sigma: float) -> float:
    return 0.0 if math.isnan(sigma) else sigma


#: a row that was measured: rank, micro-batch, row
Place = tuple[int, int, int]


def samples(rerun: Rerun, measuring: Measuring) -> Samples | None:
    """Look at each row of the incident's batch, in all processes; None where the micro-batches of one of them have no rows."""
    step = rerun.evidence.step
    everybody = gathered(([s for s in rerun.evidence.steps if rerun.snapshot.step <= s < step], rerun.evidence.ids(step)))
    mine = _measured(rerun, measuring, step, MOST // len(everybody))
    if not mine:
        return None
    earlier = sorted(set.intersection(*(set(steps) for steps, _ in everybody)))[-2:]
    past = [m for s in earlier for _, m in _measured(rerun, measuring, s, BEFORE // len(everybody) // len(earlier))]
    ids = [given for _, given in everybody]
    rows = tuple(_row(place, found, ids, [m for j, (_, m) in enumerate(mine) if j != i], past) for i, (place, found) in enumerate(mine))
    found = Samples(rows, len(past), not any(r.unlike for r in rows), "")
    return Samples(rows, len(past), found.ordinary, _sentence(found, past))


def _measured(rerun: Rerun, measuring: Measuring, step: int, most: int) -> list[tuple[Place, Measured]]:
    """Each row of a step's micro-batches, or as many of them evenly spread, of all processes."""
    batches = rerun.evidence.batches(step)
    places = [(micro, at) for micro, batch in enumerate(batches) for at in range(row_count(batch))]
    places = places[:: max(1, -(-len(places) // max(1, most)))]
    counts = gathered(len(places))
    found = []
    for i in range(max(counts) if all(counts) else 0):  # who has fewer rows does one again, since the others may wait for it
        micro, at = places[min(i, len(places) - 1)]
        found.append((micro, at, measuring.of_row(step, row(batches[micro], at, row_count(batches[micro])), micro)))
    own = [((micro, at), m) for micro, at, m in found[: len(places)]]
    return [((rank, *place), m) for rank, entries in enumerate(gathered(own)) for place, m in entries]


def _row(place: Place, own: Measured, ids: Sequence[list[Any]], others: list[Measured], past: list[Measured]) -> Row:
    rank, micro, at = place
    given = ids[rank][micro]
    name = given[at] if isinstance(given, (list, tuple)) and at < len(given) else None
    loss = _furthest(own.loss, [m.loss for m in others], [m.loss for m in past])
    gradient = _furthest(own.grad_norm, *([m.grad_norm for m in group if m.grad_norm is not None] for group in (others, past)))
    return Row(micro, at, name, rank if len(ids) > 1 else None, own.loss, own.grad_norm, loss, gradient)


def _furthest(own: float | None, *groups: list[float]) -> float:
    if own is None:
        return math.nan
    sigmas = [sigma_above(own, group, FLOOR) for group in groups]
    return max((s for s in sigmas if not math.isnan(s)), default=math.nan)


def _sentence(found: Samples, past: list[Measured]) -> str:
    count, unlike = len(found.rows), found.unlike
    if past and not any(m.finite for m in past):
        return f"no row is finite at this state, and none of the {len(past)} rows of the steps before either: it is no row's fault"
    if not unlike:
        return f"each of the {count} rows is ordinary, in loss and in gradient: the batch is an ordinary one"
    if len(unlike) == count:
        return f"all {count} rows are unlike the {found.before} rows of the steps before at the same state: it is the whole batch"
    first = ", ".join(_words(r) for r in unlike[:3])
    more = f", and {len(unlike) - 3} more" if len(unlike) > 3 else ""
    return f"{len(unlike)} of {count} rows are unlike the others: {first}{more}"


def _words(found: Row) -> str:
    name = "" if found.id is None else f" ({found.id})"
    where = "" if found.rank is None else f" of rank {found.rank}"
    gradient = "" if found.grad_norm is None else f" and gradient norm {found.grad_norm:.4g} ({found.grad_sigma:.1f} sigma above)"
    return f"row {found.row}{name} of micro-batch {found.micro_batch}{where} with loss {found.loss:.4g} ({found.loss_sigma:.1f} sigma above){gradient}"
