"""From measured quantities to a verdict, which can come out against the claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stabilitylens.reproductions._claim import Claim, Expect, Numbers

Verdict = Literal["reproduced", "partly", "not reproduced", "mis-stated", "not run"]


@dataclass(frozen=True)
class Outcome:
    """An expectation, and its quantity for each seed."""

    expect: Expect
    values: tuple[float, ...]

    @property
    def held(self) -> int:
        """How many seeds are as expected."""
        return sum(map(self.expect.holds, self.values))

    @property
    def always(self) -> bool:
        """Whether all seeds are as expected."""
        return self.held == len(self.values) > 0

    @property
    def mostly(self) -> bool:
        """Whether more than half of the seeds are as expected."""
        return 2 * self.held > len(self.values)


def outcomes(claim: Claim, seeds: Sequence[Numbers]) -> tuple[Outcome, ...]:
    """What was measured beside what was expected, for the quantities of each seed."""
    return tuple(Outcome(e, tuple(seed.get(e.quantity, math.nan) for seed in seeds)) for e in claim.expects)


def verdict(found: Sequence[Outcome]) -> Verdict:
    """The verdict on a claim.

    - *reproduced*: every expectation of the claim's own holds for every seed;
    - *not reproduced*: a decisive one fails for half of the seeds or more;
    - *mis-stated*: the same, and all that is expected to be true instead holds for every seed;
    - *partly*: anything else: a supporting one fails, or seeds disagree.
    """
    own = [o for o in found if o.expect.role != "corrected"]
    corrected = [o for o in found if o.expect.role == "corrected"]
    if all(o.mostly for o in own if o.expect.role == "decisive"):
        return "reproduced" if all(o.always for o in own) else "partly"
    return "mis-stated" if corrected and all(o.always for o in corrected) else "not reproduced"
