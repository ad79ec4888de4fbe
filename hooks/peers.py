"""Which of the processes that train together have ended, as far as one machine can tell: without waiting for them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


def card(pid: int) -> list[str] | None:
    """What tells a process from all others: its machine since the last start, its process ids' space, its id, when it began.

    None where the system does not say, or the process has ended.
    """
    try:
        state, *rest = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return None if state in "ZX" else [boot, os.readlink(_PROC / "self/ns/pid"), str(pid), rest[18]]
    except (OSError, IndexError):
        return None


class Peers:
    """The processes by rank.

    Args:
        store: the key-value store that they share.
        rank: this one's.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._mine = store, card(os.getpid())
        self._cards: dict[int, list[str]] = {}
        store.set(f"process/{rank}", json.dumps(self._mine))

    def ended(self, ranks: tuple[int, ...]) -> list[int]:
        """Those of this machine that have ended; of another machine's nothing is known."""
        return [rank for rank in ranks if self._is_near(rank) and card(int(self._cards[rank][2])) != self._cards[rank]]

    def _is_near(self, rank: int) -> bool:
        if self._mine is None:
            return False
        if rank not in self._cards and self._store.check([f"process/{rank}"]):
            self._cards[rank] = json.loads(self._store.get(f"process/{rank}")) or []
        return self._cards.get(rank, [])[:2] == self._mine[:2]
