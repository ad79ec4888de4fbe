"""What a sweep over learning rates found, and what is read from each of its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from stabilitylens.run import Run

#: share of the steps, at the end, over which the final loss is a mean
LATE = 0.1


def late_loss(run: Run) -> float:
    """Mean loss of the last tenth of the steps, in nat; infinite where one of them is not finite."""
    values = run["loss"].values
    late = values[-max(1, math.ceil(LATE * len(values))) :]
    return float(late.mean()) if np.isfinite(late).all() else math.inf


def largest(run: Run, name: str) -> float:
    """The largest value that a series ever had, NaN where it was not observed."""
    return math.nan if run.why_missing(name) else float(np.nanmax(run[name].values))


def last_entropy(run: Run) -> float:
    """The smallest layer's entropy ratio, mean over heads, at the last sampled step; NaN where it was not observed."""
    if run.why_missing("attn_entropy_ratio"):
        return math.nan
    last = run["attn_entropy_ratio"].values[-1]
    seen = last[np.isfinite(last).any(axis=-1)]
    return float(np.nanmean(seen, axis=-1).min()) if len(seen) else math.nan


def sensitivity(losses: Sequence[float] | Float[np.ndarray, " lr"], initial: float) -> float:
    """Mean of min(loss, initial loss) less the smallest loss, in nat; NaN where no loss is below the initial one."""
    capped = np.minimum(losses, initial)
    return float((capped - capped.min()).mean()) if capped.min() < initial else math.nan


@dataclass(frozen=True)
class LRSensitivity:
    r"""What a sweep over learning rates found; arrays have one entry a learning rate, rising.

    Attributes:
        lrs: the learning rates.
        losses: mean loss of the last tenth of the steps, nat; infinite where one of them was not finite.
        initial_loss: mean loss of the first steps of all runs, nat.
        max_attn_logit: largest attention logit of the run; ``attn_entropy_ratio``: the sharpest layer's at the last
            sampled step. NaN where they were not observed.
        first_fired: the smallest learning rate at which each rule fired, by code: the early warning. Rules that fired at
            none are not in it, nor those of ``everywhere``.
        everywhere: rules that say nothing about the learning rate, by code, with what they judge: ``the anatomy``, ``the
            recipe``, or ``the recording`` where they fired at every learning rate.
        runs: the recordings.
    """

    lrs: Float[np.ndarray, " lr"]
    losses: Float[np.ndarray, " lr"]
    initial_loss: float
    max_attn_logit: Float[np.ndarray, " lr"]
    attn_entropy_ratio: Float[np.ndarray, " lr"]
    first_fired: Mapping[str, float]
    everywhere: Mapping[str, str]
    runs: tuple[Run, ...] = field(repr=False)

    @property
    def value(self) -> float:
        r"""$\mathbb E_\eta[\min(\ell(\eta), \ell_0) - \ell^*]$ with ℓ₀ the initial and ℓ* the smallest loss, in nat.

        Wortsman et al. 2023, https://arxiv.org/abs/2309.14322; the mean is over the learning rates of the sweep, so that
        only sweeps over the same ones, evenly spaced in their logarithm, compare. NaN where no run came below ℓ₀.
        """
        return sensitivity(self.losses, self.initial_loss)

    @property
    def why_not(self) -> str:
        """Why there is no value; empty where there is one."""
        if not math.isnan(self.value):
            return ""
        if not math.isfinite(self.initial_loss):
            return "the loss was not finite from the first step on"
        if all(len(run["loss"].values) == 1 for run in self.runs):
            return "each run took one step, so that its last loss is its first; data() has to give more batches"
        return "no run ended below the initial loss; train longer, or at smaller learning rates"

    def __str__(self) -> str:
        fired = {lr: " ".join(code for code, first in self.first_fired.items() if first == lr) for lr in self.lrs}
        head = f"{'lr':>9} {'loss':>9} {'max logit':>10} {'entropy':>8}  rules that fire from here on"
        columns = zip(self.lrs, self.losses, self.max_attn_logit, self.attn_entropy_ratio, strict=True)
        rows = [f"{lr:>9.3g} {loss:>9.4g} {logit:>10.4g} {ratio:>8.3g}  {fired[lr]}" for lr, loss, logit, ratio in columns]
        apart = [f"whatever the learning rate, of {what}: {' '.join(codes)}" for what, codes in self._apart().items()]
        value = f"not defined: {self.why_not}" if self.why_not else f"{self.value:.4g} nat"
        return "\n".join([head, *rows, *apart, f"LR sensitivity {value}, initial loss {self.initial_loss:.4g}"])

    def _apart(self) -> dict[str, list[str]]:
        judged: dict[str, list[str]] = {}
        for code, what in self.everywhere.items():
            judged.setdefault(what, []).append(code)
        return judged
