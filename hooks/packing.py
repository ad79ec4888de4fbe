"""Rows of one process into the two buffers that are reduced, and the whole model's rows out of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping

import numpy as np
from jaxtyping import Float

from stabilitylens.hooks.merging import PER_PARAMETER, Plan
from stabilitylens.hooks.partial import Values, rows_of
from stabilitylens.hooks.slots import ROW_TYPES

Rows = dict[str, dict[Hashable, np.ndarray]]
Buffer = Float[np.ndarray, " entry"]


class Packing:
    """Where each row of a plan has its place.

    Behind the rows each entry has a place for the number of processes that gave something, then come the values of
    sums that are yet to be taken; behind the maxima each parameter has a place for its learning rate.

    Args:
        plan: the whole model.
        rank: this process.
    """

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self._rank = plan, rank
        self._start: dict[tuple[str, Hashable], int] = {}
        identities = []
        used = 0
        for entry, rows in plan.entries.items():
            self._start[entry] = used
            identities.append(np.tile(ROW_TYPES[entry[0]].identity(), rows))
            used += len(identities[-1])
        self._identity = np.concatenate(identities) if identities else np.zeros(0)
        self._by_max = np.isneginf(self._identity)
        self._given = {entry: i for i, entry in enumerate(plan.entries)}
        self._rate = {name: i for i, name in enumerate(plan.sizes)}

    def pack(self, rows: Rows, rates: Mapping[str, float], partial: Values) -> tuple[Buffer, Buffer]:
        """What this process contributes, to be reduced by SUM and by MAX.

        Args:
            rows: by tap and own key; parameters by their own names.
            rates: learning rates by own name of a parameter.
            partial: parts of sums that are yet to be taken, by tap and own name.
        """
        full, given = self._identity.copy(), np.zeros(len(self._given))
        for own, (entry, offset) in self.plan.offsets[self._rank].items():
            row = rows.get(own[0], {}).get(own[1])
            if row is None:
                continue
            flat = self._scaled(entry[0], row).reshape(-1)
            start = self._start[entry] + offset * row.shape[1]
            place = slice(start, start + flat.size)
            full[place] = flat
            given[self._given[entry]] = bool((flat != self._identity[place]).any())
        learning = np.full(len(self._rate), -np.inf)
        for own_name, rate in rates.items():
            learning[self._rate[self.plan.names[self._rank][own_name]]] = rate
        return np.concatenate((full[~self._by_max], given, *self._summands(partial))), np.concatenate((full[self._by_max], learning))

    def _summands(self, partial: Values) -> Iterator[Buffer]:
        own = {self.plan.names[self._rank][str(n)]: n for some in partial.values() for n in some}
        for (tap, name), (size, ranks) in self.plan.partial.items():
            values = partial.get(tap, {}).get(own.get(name)) if self._rank in ranks else None
            yield np.zeros(size) if values is None else values

    def _scaled(self, tap: str, row: np.ndarray) -> np.ndarray:
        """Gradients of activations are of this process's own loss, or of a micro-batch's."""
        share = self.plan.share[self._rank]
        return row * np.array([1, share, share, share**2, share, 1]) if tap == "resid_grad" and share != 1 else row

    def unpack(self, sums: Buffer, maxima: Buffer, *, complete: bool) -> tuple[Rows, dict[int, float]]:
        """The whole model's rows, parameters by their place in the plan, and learning rates likewise.

        A parameter of which a part is missing is NaN, and so is, where something failed (not ``complete``), whatever
        fewer processes gave something to than do.
        """
        full = np.empty_like(self._identity)
        n_sum, n_max = int((~self._by_max).sum()), int(self._by_max.sum())
        full[~self._by_max], full[self._by_max] = sums[:n_sum], maxima[:n_max]
        given, summed = np.split(sums[n_sum:], [len(self._given)])
        rows: Rows = defaultdict(dict)
        for (tap, key), n_rows in self.plan.entries.items():
            kind = ROW_TYPES[tap]
            fields = len(kind.names())
            start = self._start[tap, key]
            row = full[start : start + n_rows * fields].reshape(n_rows, fields)
            if self._is_partial(tap, key, row, int(given[self._given[tap, key]]), complete):
                row = np.full_like(row, np.nan)
            if tap == "logits" and self.plan.split_logits:
                row[:, kind.names().index("sum_log_z")] = np.nan
            rows[tap][self._rate[str(key)] if tap in PER_PARAMETER else key] = row
        for tap, some in self._whole(summed).items():
            rows[tap].update({self._rate[name]: row for name, row in some.items()})
        return rows, {i: float(r) for i, r in enumerate(maxima[n_max:]) if np.isfinite(r)}

    def _whole(self, summed: Buffer) -> dict[str, dict[str, np.ndarray]]:
        """Rows of sums that have been taken; one that is zero throughout was not given."""
        ends = np.cumsum([size for size, _ in self.plan.partial.values()])[:-1]
        values = dict(zip(self.plan.partial, np.split(summed, ends), strict=True)) if self.plan.partial else {}
        return rows_of({entry: v for entry, v in values.items() if v.any()}, self.plan.sizes)

    def _is_partial(self, tap: str, key: Hashable, row: np.ndarray, given: int, complete: bool) -> bool:
        if tap in PER_PARAMETER:
            name = str(key)
            return name in self.plan.unclear or not (row[0, 0] == 0 or row[0, 0] == self.plan.sizes[name])
        return not complete and 0 < given < self.plan.contributors[tap, key]
