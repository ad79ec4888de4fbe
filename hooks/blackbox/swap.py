"""Data or state: the incident's batch at an earlier state, an earlier batch at the incident's state."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import median
from typing import Literal

from stabilitylens.hooks.blackbox.everybody import gathered
from stabilitylens.hooks.blackbox.evidence import Evidence
from stabilitylens.hooks.blackbox.measuring import Measured, Measuring
from stabilitylens.hooks.blackbox.rerun import Rerun
from stabilitylens.hooks.blackbox.sigma import sigma_above
from stabilitylens.hooks.blackbox.snapshot import Snapshot
from stabilitylens.incidents._online import MAD

#: sigma above an earlier batch at an earlier state from which a loss or a gradient norm is bad. *Heuristic*: as a spike is.
BAD = 6.0
#: least noise of their logarithms that is assumed. *Heuristic*: with the sigma above, factors of 1.35 and 2.5.
LOSS_FLOOR, GRADIENT_FLOOR = 0.05, 0.15


@dataclass(frozen=True)
class Cause:
    """What it takes for the step to go wrong.

    Attributes:
        verdict: ``data``, ``state``, ``either`` where each alone is enough, ``both`` where it takes the two together, ``neither``
            where the step is not bad when it is measured again.
        earlier: the step that the other batch and the other state are of.
        now, other_batch, other_state, earlier_both: the four measurements, without an update: the step as it was; an
            earlier batch at its state; its batch at an earlier state; both earlier.
        sentence: for a person.
    """

    verdict: Literal["data", "state", "either", "both", "neither"]
    earlier: int
    now: Measured
    other_batch: Measured
    other_state: Measured
    earlier_both: Measured
    sentence: str


def cause_of(rerun: Rerun, state: Snapshot) -> Cause | None:
    """Tell data from state; None where the snapshot is that of the incident's step, so that there is nothing earlier.

    Args:
        rerun: the replay.
        state: before the incident's step; it is the one that the replay is left in.
    """
    step, earlier = rerun.evidence.step, rerun.snapshot.step
    if earlier >= step:
        return None
    rerun.restore(state)
    late = Measuring(rerun, state)
    now, other_batch = late.of(step), late.of(earlier)
    rerun.restore()
    early = Measuring(rerun, rerun.snapshot)
    other_state, both = early.of(step), early.of(earlier)
    rerun.restore(state)
    noise = gathered(noise_of(rerun.evidence))[0]
    verdict = _verdict(*(is_bad(m, both, noise) for m in (now, other_batch, other_state)))
    return Cause(verdict, earlier, now, other_batch, other_state, both, _sentence(verdict, step, earlier, other_batch, other_state))


def is_bad(found: Measured, usual: Measured, noise: tuple[float, float]) -> bool:
    """Whether a measurement is far above another one.

    Args:
        found: the measurement.
        usual: the one that it is compared with.
        noise: of the logarithms of a loss and of a gradient norm.
    """
    if not found.finite:
        return True
    pairs = zip((found.loss, found.grad_norm), (usual.loss, usual.grad_norm), noise, strict=True)
    return any(sigma_above(own, [other], n) > BAD for own, other, n in pairs if own is not None and other is not None)


def noise_of(evidence: Evidence) -> tuple[float, float]:
    """From step to step before the incident, whatever the trend: of the logarithm of the loss, and of the gradient norm."""
    before = [step for step in evidence.steps if step < evidence.step]
    both = []
    for name, floor in (("loss", LOSS_FLOOR), ("grad_norm", GRADIENT_FLOOR)):
        known = [math.log(v) for s in before if (v := evidence.scalar(s, name)) is not None and v > 0 and math.isfinite(v)]
        moves = [abs(b - a) for a, b in itertools.pairwise(known)]
        both.append(max(floor, MAD * median(moves) / math.sqrt(2) if moves else 0.0))
    return both[0], both[1]


def _verdict(now: bool, other_batch: bool, other_state: bool) -> Literal["data", "state", "either", "both", "neither"]:
    if not now:
        return "neither"
    if other_state:
        return "either" if other_batch else "data"
    return "state" if other_batch else "both"


def _sentence(verdict: str, step: int, earlier: int, other_batch: Measured, other_state: Measured) -> str:
    batch = f"the batch of step {earlier} at the state before step {step} gives {other_batch.words}"
    state = f"the batch of step {step} at the state before step {earlier} gives {other_state.words}"
    meaning = {
        "data": "it is in the data: the batch is bad at an earlier state too, and another one is not",
        "state": "it is in the state: another batch is bad too, and the batch is not bad at an earlier state",
        "either": "it is in both: the batch is bad at an earlier state, and another one at this state",
        "both": "it takes this batch at this state: another batch is not bad, and the batch is not bad at an earlier state",
        "neither": "the step's loss and gradient are ordinary when it is measured again",
    }[verdict]
    return f"{meaning} ({batch}; {state})"
