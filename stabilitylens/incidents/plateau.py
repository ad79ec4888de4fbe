"""The plateau detector."""

from __future__ import annotations

import numpy as np

from stabilitylens.incidents._analysis import analysis
from stabilitylens.incidents._detector import detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._incidents import plain
from stabilitylens.incidents._setting import setting
from stabilitylens.run import Run

#: with fewer points nothing can be said. *Heuristic*.
POINTS = 50
#: a loss that fell by less between its first and its last third did not fall. *Heuristic*.
FALL = 0.01
RISES = ("divergence", "level_shift")


@detector
def plateau(run: Run) -> list[Incident]:
    """The loss did not come down at all over the record.

    Either nothing is learnt (a learning rate of zero, every step skipped, frozen weights), or there was nothing
    left to learn. Rises are other incidents, and losses of reinforcement learning need not come down.
    """
    found = analysis(run)
    if found is None or len(found.curve) < POINTS or any(event.kind in RISES for event in found.events):
        return []
    if setting(run).rewarded:
        return []
    thirds = np.array_split(found.curve.z, 3)
    fall = float(np.median(thirds[0]) - np.median(thirds[2]))
    if fall >= FALL or float(np.median(thirds[0]) - np.median(thirds[1])) >= FALL:
        return []
    loss = run["loss"]
    told = f"loss did not come down from step {loss.steps[0]} to {loss.steps[-1]}: its median is {np.median(found.curve.values):.4g}."
    return [plain(loss, "loss", "plateau", 0, len(loss) - 1, "info", told)]
