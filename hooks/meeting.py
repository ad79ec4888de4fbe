"""Processes come together, or learn that they do not: no process ever waits for good.

Everything goes through the key-value store that torch.distributed set itself up with. A meeting has one
outcome, decided once: by the last process to come, or by the first whose patience ends. Whoever comes
later reads it and goes on. Only where all have come do collectives follow, so that none is left hanging.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

#: seconds between looks whether those who have not come have ended
LOOK = 1.0
#: bits of a counter that hold the number of processes that came, those with a flag, those for a sample
_WIDTH = 20
_FIELD = (1 << _WIDTH) - 1


@dataclass(frozen=True)
class Outcome:
    """What became of a meeting: everybody ``came``, or why not; whether any of them raised a ``flag``."""

    came: bool
    flag: bool = False
    why: str = ""
    left: bool = False


class Meeting:
    """Meetings of a fixed set of processes, numbered alike in all of them.

    Args:
        store: the key-value store that they share.
        ranks: theirs, in order.
        rank: this one's.
        patience: seconds that a process waits for others.
        ended: those of some ranks that are known to have ended, for whom nobody waits.
    """

    def __init__(
        self, store: Any, ranks: tuple[int, ...], rank: int, patience: float, ended: Callable[[tuple[int, ...]], list[int]] = lambda _: []
    ) -> None:
        self._store, self._ranks, self._rank, self._patience, self._ended = store, ranks, rank, patience, ended
        self._number = 0

    def hold(self, *, flag: bool, sample: bool, patience: float | None = None) -> Outcome:
        """Come to the next meeting, wait for the others, and learn its outcome.

        Args:
            flag: whether this process raises its flag.
            sample: what it came for; the processes have to come for the same.
            patience: seconds to wait for others, where it is not the usual.
        """
        self._number += 1
        name, size = f"meeting/{self._number}", len(self._ranks)
        counted = self._store.add(f"{name}/came", 1 | int(flag) << _WIDTH | int(sample) << 2 * _WIDTH)
        came, flags, samples = (counted >> i * _WIDTH & _FIELD for i in range(3))
        if came == size:
            why = "" if samples in (0, size) else "some ranks sample this step, and others do not or have ended"
            self._decide(name, Outcome(not why, flags > 0, why))
        outcome = self._read(name, self._patience if patience is None else patience, last=came == size)
        if came == size and self._number > 2:
            self._forget(f"meeting/{self._number - 2}")
        return outcome

    def leave(self) -> None:
        """Come to no more meetings: the next one ends as soon as another process comes to it."""
        self._decide(f"meeting/{self._number + 1}", Outcome(False, why=f"rank {self._rank} has ended", left=True))

    def _decide(self, name: str, outcome: Outcome) -> None:
        if self._store.add(f"{name}/decided", 1) == 1:
            self._store.set(f"{name}/outcome", json.dumps(outcome.__dict__))

    def _read(self, name: str, patience: float, *, last: bool) -> Outcome:
        until = time.monotonic() + patience
        while not self._is_decided(name, min(LOOK, until - time.monotonic())):
            if ended := self._ended(self._ranks):
                self._decide(name, Outcome(False, why=f"{named(ended)} {'have' if len(ended) > 1 else 'has'} ended", left=True))
            elif time.monotonic() >= until:
                self._decide(name, Outcome(False))
        outcome = Outcome(**json.loads(self._store.get(f"{name}/outcome")))
        if not outcome.came and not outcome.why:
            late = f"rank {self._rank} came too late: the others had waited for {patience:g} s"
            return Outcome(False, why=late if last else f"{self._missing(name)} did not come within {patience:g} s")
        return outcome

    def _is_decided(self, name: str, seconds: float) -> bool:
        try:
            self._store.wait([f"{name}/outcome"], timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError:
            return False
        return True

    def _missing(self, name: str) -> str:
        """Who is missing; only asked when it is too late, so that a meeting that goes well costs nothing for it."""
        self._store.set(f"{name}/waited/{self._rank}", "1")
        time.sleep(0.3)
        missing = [r for r in self._ranks if not self._store.check([f"{name}/waited/{r}"])]
        return named(missing) if missing else "not every rank"

    def _forget(self, name: str) -> None:
        for key in ("came", "decided", "outcome"):
            self._store.delete_key(f"{name}/{key}")


def named(ranks: list[int] | tuple[int, ...]) -> str:
    """``rank 3``, or ``ranks 0, 2 and 5``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
