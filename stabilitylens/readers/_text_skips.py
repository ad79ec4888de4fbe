"""Lines that tell of an optimizer step that was skipped, and of the loss scale that it left."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stabilitylens.readers._names import known

#: a longer line is no sentence
LONGEST = 400
#: what the scale is called in the row that follows
SCALE = "loss scale"
#: which of several processes a line is of
RANK = re.compile(r"\b(?:[Rr]ank|RANK|worker|proc)[ :=_]{0,2}(\d{1,4})\b")
_SKIPPED = re.compile(r"\b[Ss]kipping (?:this )?(?:step|update|optimizer step)|OVERFLOW!|overflow detected, ignoring gradient")
_LEFT = re.compile(r"\bloss scale\b.{0,40}?\bto:? (\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.I)


@dataclass
class Skips:
    """What such lines have told.

    Attributes:
        rank: that whose lines count, as each rank tells of a step.
        scale: the loss scale that the next row begins with.
    """

    rank: str = ""
    scale: dict[str, float] = field(default_factory=dict)

    def speaks(self, line: str) -> bool:
        """Whether a line tells of a skipped step."""
        return ("kipping" in line or "verflow" in line or "OVERFLOW" in line) and len(line) <= LONGEST and _SKIPPED.search(line) is not None

    def told(self, line: str) -> bool:
        """Take such a line in; whether no other rank tells the same."""
        rank = RANK.search(line)
        if rank is not None:
            self.rank = self.rank or rank[1]
            if rank[1] != self.rank:
                return False
        if (left := _LEFT.search(line)) is not None:
            self.scale = {SCALE: float(left[1])}
        return True

    def onto(self, row: dict[str, float]) -> dict[str, float]:
        """A row with the scale that was told before it, unless it has its own."""
        if not self.scale:
            return row
        scale, self.scale = self.scale, {}
        return row if any((found := known(name)) is not None and found[0] == "loss_scale" for name in row) else scale | row
