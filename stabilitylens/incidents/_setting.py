"""What else a run says that explains its loss: where epochs begin, where the learning rate restarts, whether it is RL."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from stabilitylens.run import Run

#: a schedule that restarts goes up by this factor at once, and not above this many times what it had reached.
#: *Heuristic*: a learning rate beyond all that went before is a mistake, not a schedule.
RESTART, REACHED = 1.5, 1.25
#: names of losses that reinforcement learning has beside a reward
_RL_LOSS = re.compile(r"(^|[/_.\s-])(kl|ppo|grpo|policy|pg|actor|critic|value|vf|surrogate|entropy)([/_.\s-]|$)", re.I)
#: names of rewards; preferences have rewards too, but of answers that are given
_REWARD = re.compile(r"(^|[/_.\s-])(ep_rew|ep_rew_mean|rewards?|returns?)([/_.\s-]|$)", re.I)
_PREFERENCE = re.compile(r"rewards?/(margins?|chosen|rejected|accuracies)$", re.I)


@dataclass(frozen=True)
class Setting:
    """What explains a loss.

    Attributes:
        epochs: the first step of each epoch but the first.
        restarts: steps at which the learning rate went up at once to where it had been.
        rewarded: whether the run learns from rewards.
    """

    epochs: Int[np.ndarray, " edge"]
    restarts: Int[np.ndarray, " edge"]
    rewarded: bool = False

    def restarts_at(self, step: int, reach: int) -> bool:
        """Whether the learning rate restarts within so many steps."""
        return bool(np.any(np.abs(self.restarts - step) <= reach))


#: nothing but the series itself
ALONE = Setting(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def setting(run: Run) -> Setting:
    """The setting of a run's loss."""
    return Setting(_edges(run), _restarts(run), _rewarded(run))


def _edges(run: Run) -> Int[np.ndarray, " edge"]:
    series = run.series.get("epoch")
    if series is None or series.axes:
        return np.zeros(0, dtype=np.int64)
    known = np.isfinite(series.values)
    steps, epoch = np.asarray(series.steps)[known], np.floor(series.values[known] + 1e-9)
    return np.asarray(steps[1:][epoch[1:] > epoch[:-1]])


def _restarts(run: Run) -> Int[np.ndarray, " edge"]:
    series = run.series.get("lr")
    if series is None or series.axes:
        return np.zeros(0, dtype=np.int64)
    known = np.isfinite(series.values) & (series.values >= 0)
    steps, lr = np.asarray(series.steps)[known], series.values[known]
    if len(lr) < 2:
        return np.zeros(0, dtype=np.int64)
    reached = np.maximum.accumulate(lr)[:-1]
    came_down = lr[:-1] * RESTART < reached
    return np.asarray(steps[1:][came_down & (lr[1:] > RESTART * lr[:-1]) & (lr[1:] <= REACHED * reached)])


def _rewarded(run: Run) -> bool:
    if _RL_LOSS.search(run.loss_key or ""):
        return True
    names = [name for name, series in run.series.items() if not series.axes and _REWARD.search(name)]
    return bool(names) and not any(_PREFERENCE.search(name) for name in names)
