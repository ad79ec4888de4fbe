"""Ma et al. 2020 on how Adam's course depends on β1 and β2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, at, claim

LR = 1e-2
BETAS1 = (0.5, 0.8, 0.9, 0.95)
#: starts that go side by side
STARTS = 16
#: calm: this many steps in a row within a hundredth of a learning rate; away: farther than a tenth
CALM, NEAR, AWAY = 10, LR / 100, LR / 10
#: memories of the second moment, 1 / (1 − β2), that a course lasts at least; the first third of it is the way to the minimum
MEMORIES, ARRIVAL = 40, 3


@dataclass(frozen=True)
class Course:
    """Adam on x² / 2; ``gap`` is (1 − β2) / (1 − β1), ``least`` the smallest number of steps."""

    beta1: float
    gap: float
    least: int

    @property
    def beta2(self) -> float:
        """The second β."""
        return 1 - self.gap * (1 - self.beta1)

    @property
    def steps(self) -> int:
        """Enough for the second moment to forget the way to the minimum."""
        return max(self.least, round(MEMORIES / (1 - self.beta2)))


def distances(course: Course, seed: int) -> Float[np.ndarray, "step start"]:
    """|x| after each step but those of the arrival."""
    generator = torch.Generator().manual_seed(seed)
    x = (0.5 + torch.rand(STARTS, generator=generator, dtype=torch.float64)).requires_grad_()
    optimizer = torch.optim.Adam([x], LR, betas=(course.beta1, course.beta2))
    out = np.empty((course.steps, STARTS))
    for step in range(course.steps):
        x.grad = x.detach().clone()
        optimizer.step()
        out[step] = x.detach().abs().numpy()
    return out[course.steps // ARRIVAL :]


def spikes(distance: Float[np.ndarray, " step"]) -> int:
    """How often the minimum was left after calm."""
    count, near, calm = 0, 0, False
    for value in distance:
        near = near + 1 if value < NEAR else 0
        calm = calm or near >= CALM
        if calm and value > AWAY:
            count, calm = count + 1, False
    return count


def _cells(gaps: tuple[float, ...], steps: int) -> dict[str, Course]:
    return {f"β1 = {beta1}@{gap:g}": Course(beta1, gap, steps) for beta1 in BETAS1 for gap in gaps}


def _phases(table: Table) -> Numbers:
    curves = [dict(zip(*at(table, f"β1 = {beta1}", "spikes"), strict=True)) for beta1 in BETAS1]
    return {
        "small": min(count for curve in curves for gap, count in curve.items() if gap <= 0.1),
        "one": max(curve[1.0] for curve in curves),
        "half": max(curve[0.5] for curve in curves),
    }


@claim(
    paper=(
        "Ma, Wu and E 2020, A Qualitative Study of the Dynamic Behavior for Adaptive Gradient Algorithms, https://arxiv.org/abs/2009.06125; "
        "Bai et al. 2026, https://arxiv.org/abs/2603.09581"
    ),
    says="Adam spikes near a minimum where β2 is much closer to 1 than β1, and goes smoothly where they are about as close.",
    expects=(
        Expect("small", "spikes per 10,000 steps where (1 − β2) / (1 − β1) is 0.1 or less, least over β1 and starts", 1),
        Expect("one", "the same where it is 1, most", 0, 0),
        Expect("half", "the same where it is 0.5, as with β1 = 0.9 and β2 = 0.95, most", 0, 0, "supporting"),
    ),
    conclude=_phases,
    quick=Plan(_cells((0.05, 0.1, 0.5, 1.0), 6000), seeds=3, seconds=26),
    full=Plan(_cells((0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0), 20_000), seeds=5, seconds=250),
    bigger="The same map for a Transformer, where noise in the gradients keeps the second moment up.",
    picture=Picture("mean_spikes", "spikes per 10,000 steps", "(1 − β2) / (1 − β1)", log_y=False),
)
def adam_phase_diagram(cell: Course, seed: int, folder: Path) -> Numbers:
    """Adam spikes near a minimum where its second moment remembers much longer than its first.

    PyTorch's Adam on x² / 2 without noise, from sixteen starts. The gradient shrinks, the second moment after it, the steps grow
    until they overshoot. A spike is a distance of more than a tenth of the learning rate after ten steps within a hundredth.

    The set-up was changed after a first result, the expectations were not. The first one took 6,000 steps everywhere and counted
    from the first: with β1 = 0.95 the second moment had not yet forgotten the start, so that there was no spike, and with a ratio
    of 0.5 the arrival itself counted as one. Now a course lasts 40 memories of the second moment, and its first third is left out.
    """
    found = distances(cell, seed)
    counts = np.array([spikes(start) for start in found.T]) * 10_000 / len(found)
    return {"spikes": float(counts.min() if cell.gap <= 0.1 else counts.max()), "mean_spikes": float(counts.mean())}
