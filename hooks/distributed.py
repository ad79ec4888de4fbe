"""The processes that observe one model together: who they are, when they come together, what comes of it."""

from __future__ import annotations

import json
import os
import pickle
import sys
import zlib
from datetime import timedelta
from typing import Any

import numpy as np

from stabilitylens.hooks import per_rank, ring
from stabilitylens.hooks.collectives import Collectives
from stabilitylens.hooks.contribution import Contribution, Whole
from stabilitylens.hooks.guard import Guard
from stabilitylens.hooks.meeting import Meeting, named
from stabilitylens.hooks.merging import Plan, merge
from stabilitylens.hooks.packing import Packing
from stabilitylens.hooks.peers import Peers

#: seconds that a process waits for others at a sampled step before it goes on without
PATIENCE = 30.0
#: so many samples in a row that not all came to end the observing together
GIVE_UP = 3
#: seconds that a process waits at the first sample for others to have attached at all
GRACE = 10.0

_ATTACHED = 0


def distributed() -> Any:
    """``torch.distributed`` where several processes train together, else None; nothing is imported."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist


class Ranks:
    """The processes that observe one model; every one of them makes the same calls in the same order.

    Attributes:
        rank: this process.
        plan: the whole model, once all have told what they hold.
        apart: why the processes do not observe together; empty while they do.
        ended: those of some ranks that are known to have ended.
    """

    def __init__(self, dist: Any, every: str, guard: Guard) -> None:
        global _ATTACHED
        _ATTACHED += 1
        self.rank, self._world, self.guard = dist.get_rank(), dist.get_world_size(), guard
        store = dist.distributed_c10d._get_default_store()
        store = store.clone() if type(store).__name__ == "TCPStore" else store  # waiting locks a connection
        self._dist, self._store = dist, dist.PrefixStore(f"stabilitylens/{_ATTACHED}", store)
        self.ended = Peers(self._store, self.rank).ended
        self._store.set(f"attached/{self.rank}", every)
        self._patience = float(os.environ.get("STABILITYLENS_PATIENCE", PATIENCE))
        self._members: tuple[int, ...] = ()
        self._meeting: Meeting | None = None
        self._collectives: Collectives | None = None
        self._packing: Packing | None = None
        self._known: set[Any] = set()
        self._watch: per_rank.Watch | None = None
        self._missed = 0
        self.plan: Plan | None = None
        self.apart = ""

    @property
    def alone(self) -> bool:
        """Whether this process is the only one of several that observes, from the beginning."""
        return len(self._members) == 1

    @property
    def writes(self) -> bool:
        """Whether this process keeps the record: the first one that observes."""
        return bool(self.rank == (self._members[0] if self._members else 0))

    @property
    def samples(self) -> bool:
        """Whether there is any use in sampling on this process."""
        return self.alone or not self.apart

    def contributes(self, name: str) -> bool:
        """Whether this process counts a parameter, so that each element is counted once over all processes."""
        return self.plan is None or self.rank in self.plan.owners[self.plan.names[self.rank][name]]

    # who takes part

    def _assemble(self) -> None:
        """Settle, once and alike in all processes, which of them observe."""
        everyone = [f"attached/{r}" for r in range(self._world)]
        try:
            self._store.wait(everyone, timedelta(seconds=min(GRACE, self._patience)))
        except RuntimeError:
            pass
        if self._store.add("members/decided", 1) == 1:
            here = [r for r, key in enumerate(everyone) if self._store.check([key])]
            cadences = {r: self._store.get(everyone[r]).decode() for r in here}
            self._store.set("members", json.dumps([here, cadences]))
        here, cadences = json.loads(self._store.get("members"))
        self._members = tuple(here)
        if self.rank not in here:
            self.apart = f"{named(here)} began to observe before rank {self.rank} was attached"
        elif self.alone:
            self.apart = f"rank {self.rank} of {self._world} is the only one with a lens: call attach() on every rank"
        elif len(set(cadences.values())) > 1:
            self.apart = f"the ranks were given different values of every=: {', '.join(f'rank {r} {c}' for r, c in cadences.items())}"
        else:
            if len(here) < self._world:
                self.guard.say(f"only {named(here)} of {self._world} observe: call attach() on every rank")
            self._meeting = Meeting(self._store, self._members, self.rank, self._patience, self.ended)
            self._watch = per_rank.Watch(self._members)
            return
        if not self.alone or self._world > 1:
            self.guard.say(self.apart)

    # coming together

    def decide(self, flag: bool) -> bool | None:
        """Whether any process says yes, the same answer in all of them; None where they can't decide together. All have to ask."""
        if self._meeting is None and not self.apart:
            self._assemble()
        return None if self.apart else self.agree(flag)

    def agree(self, flag: bool) -> bool:
        """Whether any process says yes: the same answer in all of them. All have to ask.

        Before the first sample, and where the processes do not observe together, it is the process's own answer:
        False in the first case.
        """
        if self.apart:
            return flag
        if self._meeting is None:
            return False
        try:
            outcome = self._meeting.hold(flag=flag, sample=False)
        except Exception as error:
            self._part(f"the ranks can't reach each other any more ({type(error).__name__}: {error})")
            return False
        self._count(outcome.came, outcome.why, outcome.left)
        return outcome.came and outcome.flag

    def gather(self, step: int, own: ring.Waiting, given: Contribution | None, *, patience: float | None = None) -> Whole:
        """Come together with the other processes and combine what all of them saw.

        Args:
            step: the step that has just ended.
            own: the scalars of the steps that wait.
            given: what this process contributes at a sampled step; None between samples.
            patience: seconds to wait for others, where it is not the usual.
        """
        try:
            if not self._members and not self.apart:
                self._assemble()
            if self.apart or self._meeting is None:
                return self._by_itself(own, given)
            fresh = given is not None and given.rows is not None and not self._slots_of(given) <= self._known
            outcome = self._meeting.hold(flag=fresh or self.plan is None, sample=given is not None, patience=patience)
            self._count(outcome.came, outcome.why, outcome.left)
            if not outcome.came:
                return Whole(ring.without_gradients(own), events=[("ranks_apart", f"{outcome.why}: nothing is sampled at step {step}")])
            return self._combine(step, own, given, outcome.flag)
        except Exception as error:
            self._part(f"the ranks can't reach each other any more ({type(error).__name__}: {error})")
            return Whole(ring.without_gradients(own), events=[("ranks_apart", self.apart)])

    def _by_itself(self, own: ring.Waiting, given: Contribution | None) -> Whole:
        """What a process that observes alone can say: parts of parameters say nothing of the whole."""
        if not self.alone or given is None:
            return Whole(own if self.alone else ring.without_gradients(own))
        return Whole(own, given.rows)

    @staticmethod
    def _slots_of(given: Contribution) -> set[Any]:
        return {(tap, key) for some in (given.rows or {}, given.partial) for tap, entries in some.items() for key in entries}

    def _combine(self, step: int, own: ring.Waiting, given: Contribution | None, changed: bool) -> Whole:
        if self._collectives is None:
            index = self._members.index(self.rank)
            self._collectives = Collectives(self._store, index, len(self._members), self._patience)
        before = self.plan
        if changed and given is not None:
            self._negotiate(given)
        seen = self._seen(step, own, given)
        table = per_rank.columns(seen, self._members.index(self.rank), len(self._members))
        sums, maxima = self._pack(given)
        packed = np.concatenate((sums, ring.pack(own if before else ring.without_gradients(own)), table.reshape(-1), [float(len(own))]))
        packed, maxima = self._collectives.reduce(packed, np.concatenate((maxima, [float(len(own))])))
        table = packed[len(sums) + ring.RING * 6 : -1].reshape(table.shape)
        aligned = len(set(table[:, 0])) == 1 and packed[-1] == maxima[-1] * len(self._members)
        if not aligned:
            steps = ", ".join(f"rank {r} {int(s)}" for r, s in zip(self._members, table[:, 0], strict=True))
            why = f"the ranks are at different steps ({steps}): call lens.step() on every rank at every step"
            self._count(False, why, False)
            return Whole(ring.without_gradients(own), events=[("ranks_apart", why)])
        waited = packed[len(sums) : len(sums) + ring.RING * 6]
        whole = ring.unpack(waited, own, self._owners())
        watch, twins = self._watch, self.plan.twins if self.plan and not self.plan.unclear else ()
        assert watch is not None
        events = list(watch.events(table, twins))
        if given is None or self._packing is None or not self.writes:
            return Whole(whole, events=events)
        complete = not table[:, per_rank.NAMES.index("failures")].any()
        rows, rates = self._packing.unpack(packed[: len(sums)], maxima[:-1], complete=complete)
        return Whole(whole, rows, rates, per_rank.arrays(table), events)

    def _owners(self) -> int:
        """How many processes count any parameter."""
        return len({rank for some in self.plan.owners.values() for rank in some}) if self.plan is not None else 1

    def _negotiate(self, given: Contribution) -> None:
        """Tell each other what is observed, and come to the same plan."""
        assert self._collectives is not None
        try:
            own = pickle.dumps(given.describe())
        except Exception as error:  # the others wait for an answer
            self.guard.failed("describing what this rank holds", error)
            own = b""
        parts = [zlib.decompress(part) for part in self._collectives.gather(zlib.compress(own))]
        mute = [rank for rank, part in zip(self._members, parts, strict=True) if not part]
        if mute:
            raise RuntimeError(f"{named(mute)} can't tell what it holds")
        described = [pickle.loads(part) for part in parts]
        self.plan = merge(described)
        self._packing = Packing(self.plan, self.rank)
        mine = described[self._members.index(self.rank)]
        self._known |= mine.slots.keys() | mine.partial.keys()

    def _pack(self, given: Contribution | None) -> tuple[np.ndarray, np.ndarray]:
        if given is None or self._packing is None:
            return np.zeros(0), np.zeros(0)
        if given.rows is None:
            return self._packing.pack({}, {}, {})
        return self._packing.pack(given.rows, given.rates, given.partial)

    def _seen(self, step: int, own: ring.Waiting, given: Contribution | None) -> per_rank.Seen:
        last = own[-1][1] if own else {}
        rows = (given.rows if given is not None else None) or {}
        stream = np.array([r[0] for r in rows.get("resid", {}).values()]).reshape(-1, 6).sum(0)
        gradient = np.array([r[0] for r in rows.get("resid_grad", {}).values()]).reshape(-1, 6).sum(0)
        return per_rank.Seen(
            step=step,
            loss=last.get("loss", np.nan),
            step_time=last.get("step_time", np.nan),
            bad_loss=ring.first_bad_loss(own),
            nonfinite=stream[5], stream_sq=stream[3], stream_count=stream[0], gradient_sq=gradient[3],
            checksum=given.checksum if given is not None else 0.0,
            skipped=sum(numbers.get("skipped", 0.0) > 0 for _, numbers in own),
            failures=0 if given is None else given.failures + (given.rows is None),
        )  # fmt: skip

    # coming apart

    def _count(self, came: bool, why: str, left: bool) -> None:
        self._missed = 0 if came else self._missed + 1
        if left or self._missed >= GIVE_UP:
            self._part(why)
        elif not came:
            self.guard.say(f"{why}; nothing of this step is combined", once="ranks apart")

    def _part(self, why: str) -> None:
        """Stop observing together, for good."""
        self.apart = why
        if self._meeting is not None:
            self.guard.say(f"{why}, so from here on only the record of each step's scalars goes on")

    def leave(self) -> None:
        """Tell the others that this process comes no more, so that none of them waits for it."""
        if self._meeting is not None and not self.apart:
            self.apart = "the lens was closed"
            self._meeting.leave()
