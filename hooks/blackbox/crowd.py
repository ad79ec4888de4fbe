"""The processes whose black boxes dump together, so that an incident is one folder with everybody's part."""

from __future__ import annotations

import json
from typing import Any

from stabilitylens.hooks.distributed import Ranks
from stabilitylens.hooks.meeting import Meeting

#: seconds that a process waits for others that write
PATIENCE = 600.0


class Apart(RuntimeError):
    """Not every process came."""


class Alone:
    """A process that trains by itself."""

    rank, world, writes, several = 0, 1, True, False

    def first_trouble(self, found: list[tuple[int, list[str]]]) -> tuple[int, list[str]] | None:
        """The first step with trouble among those that every process has looked at, and the kinds; None for none."""
        return min(found) if found else None

    def exchange(self, value: Any) -> list[Any]:
        """What every process says here, in order; plain data."""
        return [value]

    def leave(self) -> None:
        """Come no more."""


class Crowd(Alone):
    """Several processes; each of them makes the same calls in the same order.

    Args:
        ranks: the processes.

    Attributes:
        rank: this one's, in the whole training.
        world: how many dump together. writes: whether this one makes the folder.
    """

    several = True

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self.rank = ranks, ranks.rank
        self._meeting: Meeting | None = None
        self._number = 0
        self._gone = ""

    def first_trouble(self, found: list[tuple[int, list[str]]]) -> tuple[int, list[str]] | None:
        """As for one process; one meeting at each step, and what was found is only told where anything was.

        Raises:
            Apart: not every process came; none does from here on.
        """
        if not self._hold(bool(found), None):
            return None
        several = [(step, kinds) for part in self.exchange(found) for step, kinds in part]
        first = min(step for step, _ in several)
        return first, sorted({kind for step, kinds in several if step == first for kind in kinds})

    def exchange(self, value: Any) -> list[Any]:
        """What every process says here, in the order of their ranks.

        Raises:
            Apart: not every process came.
        """
        self._assemble()
        self._number += 1
        store, name = self._ranks._store, f"blackbox/said/{self._number}"
        store.set(f"{name}/{self.rank}", json.dumps(value))
        self._hold(False, PATIENCE)
        return [json.loads(store.get(f"{name}/{r}")) for r in self._ranks._members]

    def leave(self) -> None:
        """Tell the others, so that none of them waits."""
        if self._meeting is not None and not self._gone:
            self._gone = "the lens was closed"
            self._meeting.leave()

    def _assemble(self) -> None:
        if self._meeting is None and not self._gone:
            if self._ranks.decide(False) is None:
                self._gone = self._ranks.apart
            else:
                members = self._ranks._members
                self.world, self.writes = len(members), self._ranks.writes
                store = self._ranks._dist.PrefixStore("blackbox", self._ranks._store)
                self._meeting = Meeting(store, members, self.rank, self._ranks._patience, self._ranks.ended)

    def _hold(self, flag: bool, patience: float | None) -> bool:
        self._assemble()
        if self._meeting is None or self._gone:
            raise Apart(f"the black boxes of several processes can't dump together: {self._gone}")
        outcome = self._meeting.hold(flag=flag, sample=False, patience=patience)
        if not outcome.came:
            self._gone = outcome.why
            raise Apart(f"the black boxes of several processes no longer dump together: {outcome.why}")
        return outcome.flag
