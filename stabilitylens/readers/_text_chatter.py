"""What a log says before its first loss, and only once, is no row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from stabilitylens.readers import _names
from stabilitylens.readers._rows import Mark

loss_rank = lru_cache(maxsize=8192)(_names.loss_rank)
#: so many rows before the first loss are looked through; with so many fields they are no chatter
CHATTER, RICH = 1024, 5


def without_chatter(rows: Iterator[Any]) -> Iterator[Any]:
    """Leaves out lines before the first loss that have a counter, say little and come once: "Loaded step 500 in 3.2 s"."""
    head: list[Any] = []
    for row in rows:
        head.append(row)
        if len(head) >= CHATTER or (not isinstance(row, Mark) and any(map(loss_rank, row))):
            break
    else:
        yield from head
        return
    seen = Counter(frozenset(row) for row in head if not isinstance(row, Mark))
    yield from (row for row in head[:-1] if isinstance(row, Mark) or len(row) >= RICH or seen[frozenset(row)] > 1)
    yield head[-1]
    yield from rows
