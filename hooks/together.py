"""A lens among several: what this process contributes, and the record of the whole model on the one that writes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch

from stabilitylens.hooks.cadence import Every, describe
from stabilitylens.hooks.contribution import Contribution, Whole
from stabilitylens.hooks.descriptions import Description, Held, Print
from stabilitylens.hooks.distributed import Ranks, distributed
from stabilitylens.hooks.guard import Guard, guarded
from stabilitylens.hooks.merging import OF_WEIGHTS, PER_HEAD, PER_PARAMETER
from stabilitylens.hooks.packing import Rows
from stabilitylens.hooks.parameters import ParameterTaps
from stabilitylens.hooks.partial import Values
from stabilitylens.hooks.record import Recorder
from stabilitylens.hooks.ring import without_gradients
from stabilitylens.hooks.sample import Layout, assemble
from stabilitylens.hooks.shares import Shares, local
from stabilitylens.hooks.subject import Subject
from stabilitylens.hooks.taps import ForwardTaps
from stabilitylens.hooks.whole import WholeParameters, WholeSubject, WholeTaps
from stabilitylens.kernels import second_moments
from stabilitylens.metrics import Metric, compute

SPLIT_LOGITS = "the output logits are split over processes along the vocabulary"
#: seconds that a process which closes waits for others to close too
PARTING = 3.0


class Together:
    """Samples of the whole model, of which each process sees a part.

    Args:
        ranks: the processes.
        subject, taps, parameters, recorder: this one's.
        metrics: what is computed.
    """

    def __init__(
        self, ranks: Ranks, subject: Subject, taps: ForwardTaps, parameters: ParameterTaps, recorder: Recorder,
        metrics: Sequence[Metric], guard: Guard,
    ) -> None:  # fmt: skip
        self._ranks, self._subject, self._taps, self._parameters = ranks, subject, taps, parameters
        self._recorder, self._metrics, self.guard = recorder, metrics, guard
        self._with_gradient: set[int] = set()
        self._failures = 0
        weakref.finalize(self, recorder.flush)  # at the latest when Python ends: a loop may never close its lens

    @property
    def samples(self) -> bool:
        """Whether there is any use in sampling on this process."""
        return self._ranks.samples

    def sample(self, step: int, rows: Rows | None, rates: dict[int, float], loss_scale: float) -> dict[str, np.ndarray]:
        """Combine what every process saw at a step, and record it on the one that writes.

        Returns:
            The arrays of the step; none where this process does not write.
        """
        return self._gather(step, self._contribution(rows, rates), loss_scale)

    @guarded("combining the scalars of several steps")
    def between(self, step: int) -> None:
        """Combine the scalars of steps that were not sampled, once many wait."""
        if self._recorder.full:
            self._gather(step, None, 1.0)

    def close(self, step: int) -> None:
        """Combine the scalars of the last steps where all processes close, and part."""
        dying = sys.exc_info()[0] is not None
        if not dying and not self._ranks.apart and self._ranks.plan is not None:
            self._gather(step - 1, None, 1.0, patience=PARTING)
        self._ranks.leave()

    def _gather(self, step: int, given: Contribution | None, loss_scale: float, patience: float | None = None) -> dict[str, np.ndarray]:
        plan = self._ranks.plan
        whole = self._ranks.gather(step, self._recorder.take(), given, patience=patience)
        if self._ranks.plan is not plan and self._ranks.plan is not None:
            names = self._parameters.names
            self._parameters.counted = {i for i, name in enumerate(names) if self._ranks.contributes(name)}
            self._recorder.anatomy = self._ranks.plan.anatomy
        return self._record(step, whole, loss_scale, given) if self._ranks.writes else {}

    # what this process contributes

    def _contribution(self, rows: Rows | None, rates: dict[int, float]) -> Contribution:
        names = self._parameters.names
        named = None
        if rows is not None:
            named = {t: {named_key(t, k, names): r for k, r in some.items()} for t, some in rows.items()}
        failures, self._failures = sum(self.guard.failures.values()) - self._failures, sum(self.guard.failures.values())
        held = (rows or {}).get("param", {})
        checksum = sum((int(i) + 1) * r[0, 3] for i, r in held.items())  # type: ignore[call-overload]
        taken = self._parameters.partial.take()
        partial: Values = {t: {named_key("grad", i, names): v for i, v in some.items()} for t, some in taken.items()}
        return Contribution(
            named, {names[i]: r for i, r in rates.items()}, partial, lambda: self._describe(named or {}, partial), checksum, failures
        )

    @torch.no_grad()
    def _describe(self, rows: Rows, partial: Values) -> Description:
        shares = Shares(self._subject.model, self._ranks.rank)
        stage, divided = shares.pipeline()
        parameters = {}
        for name, parameter, values in zip(self._parameters.names, self._parameters.parameters, self._values(), strict=True):
            share = shares.of(parameter)
            gradient = rows.get("grad", rows.get("grad_clipped", {})).get(name)
            more = () if gradient is None else (float(gradient[0, 3]), float(gradient[0, 4]))
            parameters[name] = Held(share.group, share.part, local(parameter).numel(), (*values, *more))
        sites = {(t, k): r for t, some in rows.items() for k, r in some.items()}
        return Description(
            rank=self._ranks.rank,
            data=shares.data(),
            stage=stage,
            divided=divided,
            anatomy=self._recorder.anatomy,
            blocks=tuple(self._subject.blocks),
            parameters=parameters,
            slots={entry: fingerprint(entry[0], row) for entry, row in sites.items()},
            rows={entry: len(row) for entry, row in sites.items()},
            layers=tuple(dict.fromkeys([*((name, 0) for name in self._subject.blocks), *self._taps.layers])),
            attention=tuple(self._taps.attention),
            norms=tuple(self._taps.norms),
            branch_kinds=dict(self._taps.branch_kinds),
            partial={(t, str(n)): len(v) for t, some in partial.items() for n, v in some.items()},
        )

    def _values(self) -> list[Print]:
        """Prints of the values of this process's parameters."""
        rows = [second_moments(local(p.detach())) for p in self._parameters.parameters]
        return [(r[3], r[4]) for r in torch.stack(rows).tolist()] if rows else []

    # the record

    def _record(self, step: int, whole: Whole, loss_scale: float, given: Contribution | None) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        if whole.rows is not None:
            subject, taps, parameters, rates = self._views(whole, given)
            layers = list(dict.fromkeys([*((name, 0) for name in subject.blocks), *taps.layers]))
            layout = Layout.of(parameters.names, layers, list(taps.attention), len(taps.branch_kinds), list(taps.norms))
            arrays = compute(assemble(whole.rows, layout, rates, loss_scale), self._metrics)
        if whole.ring and whole.ring[-1][0] == step:
            whole.ring[-1][1].update({n: float(arrays[n]) for n in ("grad_norm", "grad_norm_clipped") if n in arrays})
        alone = self._ranks.plan is None and self._subject.sharded
        self._recorder.write(without_gradients(whole.ring) if alone else whole.ring)
        if whole.rows is not None:
            self._recorder.sample(step, arrays | whole.arrays, layout, taps, parameters, subject)
        for kind, text in whole.events:
            self._recorder.event(step, kind, text)
        return arrays

    def _views(self, whole: Whole, given: Contribution | None) -> tuple[WholeSubject, WholeTaps, WholeParameters, dict[int, float]]:
        """The whole model in place of this process's part of it."""
        plan, own, mine = self._ranks.plan, self._taps, self._parameters
        assert whole.rows is not None
        blocks: Sequence[str] = list(self._subject.blocks)
        sites, names, rates = (list(own.layers), list(own.attention), list(own.norms)), mine.names, whole.rates
        unreadable, kinds, apart = dict(self._subject.unreadable), dict(own.branch_kinds), ""
        skipped = dict(own.skipped)
        if plan is None:
            apart = self._ranks.apart
            whole.rows.update(self._alone(whole.rows))
            rates = {names.index(n): r for n, r in given.rates.items()} if given is not None else {}
        else:
            blocks, names = plan.blocks, list(plan.sizes)
            sites, kinds = (list(plan.layers), list(plan.attention), list(plan.norms)), dict(plan.branch_kinds)
            unreadable |= summarised(plan.unclear)
            skipped |= {"log_z": SPLIT_LOGITS} if plan.split_logits else {}
        counted = [whole.rows.get(tap, {}) for tap in ("grad", "grad_clipped")]
        self._with_gradient |= {int(i) for some in counted for i, row in some.items() if row[0, 0] != 0}  # type: ignore[call-overload]
        subject = WholeSubject(blocks, self._subject.compiled, unreadable, apart if self._subject.sharded else "")
        taps = WholeTaps(*sites, kinds, skipped, own.fused, own.compiled, own.ran or bool(sites[0]), own.precision)
        return subject, taps, WholeParameters(names, self._with_gradient, mine.skipped_state), rates

    def _alone(self, rows: Rows) -> Rows:
        """A lone process's rows by index again, without those of parameters of which it may have a part."""
        index = {name: i for i, name in enumerate(self._parameters.names)}
        dropped = (PER_PARAMETER | OF_WEIGHTS - {"norm_gain", "dyt_alpha"}) if self._subject.sharded else frozenset()
        for tap in dropped & rows.keys():
            del rows[tap]
        return {tap: {index[str(k)]: r for k, r in rows[tap].items()} for tap in PER_PARAMETER & rows.keys()}


def named_key(tap: str, key: Hashable, names: Sequence[str]) -> Hashable:
    """A parameter's name in place of its index; of other taps the key."""
    return names[int(str(key))] if tap in PER_PARAMETER else key


def summarised(unclear: Mapping[str, str]) -> dict[str, str]:
    """One line for many parameters that nothing is said of."""
    first = next(iter(unclear), "")
    return dict(unclear) if len(unclear) < 4 else {f"{first} and {len(unclear) - 1} other parameters": unclear[first]}


def fingerprint(tap: str, row: np.ndarray) -> Print:
    """A few numbers that tell whether two processes saw the same tensor: weighted sums of each field."""
    weights = np.arange(1, len(row) + 1)[:, None] if tap in PER_HEAD | {"expert_grad"} else 1
    finite = np.where(np.isfinite(row), row, 0) * weights
    return (float(len(row)), *map(float, finite.sum(0)))


def together(
    subject: Subject, taps: ForwardTaps, parameters: ParameterTaps, recorder: Recorder, metrics: Sequence[Metric],
    ranks: Ranks | None, guard: Guard,
) -> Together | None:  # fmt: skip
    """The lens among several, where there are several."""
    return None if ranks is None else Together(ranks, subject, taps, parameters, recorder, metrics, guard)


def ranks_of(every: Every, guard: Guard) -> Ranks | None:
    """The processes that train with this one; None for a single one, or where they can't be reached."""
    dist = distributed()
    if dist is None:
        return None
    try:
        return Ranks(dist, str(describe(every)), guard)
    except Exception as error:
        guard.failed("reaching the other ranks", error)
        return None
