"""What the learning rate did shortly before an incident: a jump, a climb within a few steps, its highest value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from stabilitylens.explanation._coincidence import Coincidence, reach, scalar
from stabilitylens.incidents import Incident
from stabilitylens.run import Run

#: a learning rate jumps where it changes by this factor between two points, *heuristic*,
JUMP = 1.2
#: and by this many times the usual change of its surroundings, and those next to it: a warm-up doubles in its first
#: steps. *Heuristic*.
UNUSUAL, STEEPER = 4.0, 2.0
#: it climbs where it rises by this factor over several points, and by this power of it more than over as many before.
#: *Heuristic*.
CLIMB, MORE = 3.0, 2.0
#: what rises slowly is noticed late: a jump by this factor counts from as far back as this share of the rise, before where the
#: rise was noticed; and after that, while the loss was still below this share of its height. *Heuristic*.
FACTOR, BEHIND, FOOT = 1.5, 0.15, 0.25
#: kinds that rise slowly, so that their first step is a guess
SLOW = frozenset(("divergence", "drift", "level_shift"))
#: points whose median is the loss before
LEVEL = 15

Steps = Int[np.ndarray, " point"]
Values = Float[np.ndarray, " point"]


def learning_rate(run: Run, incident: Incident) -> Iterator[Coincidence]:
    """Jumps, the largest rise where it took several points, and the highest value, of the scalar ``lr``."""
    steps, values = scalar(run, "lr")
    first, last = reach(run, incident), incident.start_step
    inside = (steps[1:] >= first) & (steps[1:] <= last)
    changes = np.diff(np.log(values))
    near = np.flatnonzero((inside | _around_a_slow_rise(run, incident, steps[1:], changes)) & (np.abs(changes) > np.log(JUMP)))
    jumps = [i for i in near.tolist() if _is_sudden(changes, i)]
    for i in jumps:
        yield _rose(steps, values, i, i + 1)
    if not any(changes[i] > 0 for i in jumps):
        yield from _climb(steps, values, inside)
    peak = int(np.argmax(values >= (1 - 1e-6) * values.max())) if len(values) else 0
    if 0 < peak and first <= steps[peak] <= last and changes[peak - 1] <= np.log(JUMP):
        yield Coincidence("lr_peak", int(steps[peak]), 1.0, f"lr reached its highest value, {values[peak]:.3g}, at step {int(steps[peak])}")


def _is_sudden(changes: Values, i: int) -> bool:
    """Whether the logarithm changes by far more than around it."""
    around = np.abs(np.delete(changes[max(0, i - 8) : i + 9], min(i, 8)))
    usual = float(np.median(around)) if len(around) else 0.0
    beside = float(np.max(np.abs(changes[[k for k in (i - 1, i + 1) if 0 <= k < len(changes)]]), initial=0.0))
    return bool(abs(changes[i]) > max(UNUSUAL * usual, STEEPER * beside))


def _around_a_slow_rise(run: Run, incident: Incident, steps: Steps, changes: Values) -> np.ndarray:
    """Where a rise of the learning rate may be the cause of a slow rise that was noticed late, or placed too early."""
    if incident.kind not in SLOW:
        return np.zeros(len(steps), dtype=np.bool_)
    back = incident.start_step - BEHIND * (incident.peak_step - incident.start_step)
    near: np.ndarray = (changes >= np.log(FACTOR)) & (steps >= back) & (steps <= _foot(run, incident))
    return near


def _foot(run: Run, incident: Incident) -> int:
    """The last step before the loss had come to a part of its height; the start where that is not known."""
    steps, values = scalar(run, incident.metric, positive=False)
    at, peak = (int(np.searchsorted(steps, step)) for step in (incident.start_step, incident.peak_step))
    if not 0 < at < peak < len(steps):
        return incident.start_step
    level = float(np.median(values[max(0, at - LEVEL) : at]))
    high = np.flatnonzero(values[at : peak + 1] > level + FOOT * (values[peak] - level))
    return int(steps[at + high[0]]) if len(high) else incident.start_step


def _climb(steps: Steps, values: Values, inside: np.ndarray) -> Iterator[Coincidence]:
    """A rise over several points by a factor that the points before, as many, do not have."""
    points = np.flatnonzero(inside)
    if len(points) < 2:
        return
    low, high = int(points[0]), int(points[-1]) + 1
    before = low - (high - low)
    rise = float(np.log(values[high] / values[low]))
    if before >= 0 and rise > np.log(CLIMB) and rise > MORE * abs(float(np.log(values[low] / values[before]))):
        yield _rose(steps, values, low, high)


def _rose(steps: Steps, values: Values, low: int, high: int) -> Coincidence:
    with np.errstate(over="ignore"):
        factor = float(values[high] / values[low])
    when = f"at step {int(steps[high])}" if high == low + 1 else f"from step {int(steps[low])} to {int(steps[high])}"
    return Coincidence("lr_jump", int(steps[high]), factor, f"lr went from {values[low]:.3g} to {values[high]:.3g} (× {factor:.3g}) {when}")
