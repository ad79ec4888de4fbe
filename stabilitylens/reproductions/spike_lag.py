"""Wortsman et al. 2023 on loss spikes that follow a second moment out of date."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import stabilitylens as sl
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import Expect, Numbers, Picture, Plan, Table, at, claim
from stabilitylens.reproductions._data import data
from stabilitylens.reproductions._model import fresh, loss_of

#: RMS_t from which on the authors expect a spike, and how many steps later at most
THRESHOLD, LAG = 2.3, 8
BATCH = 8


@dataclass(frozen=True)
class Change:
    """Training on one batch until it is known by heart, then on other text."""

    beta2: float
    before: int
    after: int = 20
    choices: Choices = Choices(depth=2, width=32, context=32)
    lr: float = 1e-2


def _cells(change: Change, betas: tuple[float, ...]) -> dict[str, Change]:
    return {f"after the change@{beta2}": Change(beta2, change.before, choices=change.choices) for beta2 in betas}


def _lags(table: Table) -> Numbers:
    betas, rises = at(table, "after the change", "rise")
    late, early = table[f"after the change@{betas[-1]}"], table[f"after the change@{betas[0]}"]
    return {"rms": late["rms"], "lag": late["lag"], "rise": rises[-1], "control": rises[0], "control_rms": early["rms"]}


@claim(
    paper=(
        "Wortsman et al. 2023, Stable and low-precision training for large-scale vision-language models, "
        "https://arxiv.org/abs/2304.13013"
    ),
    says="Loss spikes come one to eight steps after RMS_t has passed 2.3, and a smaller β2 avoids them.",
    expects=(
        Expect("rms", "largest RMS_t of a layer in the step of the change, β2 = 0.999", THRESHOLD),
        Expect("lag", "steps from there to the largest loss, β2 = 0.999", 1, LAG),
        Expect("rise", "largest loss less that in the step of the change, nat, β2 = 0.999", 0.5),
        Expect("control", "the same, β2 = 0.8", high=0.25),
        Expect("control_rms", "largest RMS_t in the step of the change, β2 = 0.8: it can't exceed 1/√(1 − β2)", high=2.24, role="supporting"),
    ),
    conclude=_lags,
    quick=Plan(_cells(Change(0, 120), (0.8, 0.999)), seeds=3, seconds=25),
    full=Plan(_cells(Change(0, 300, choices=Choices(depth=4, width=64, context=64)), (0.8, 0.9, 0.95, 0.99, 0.999)), seeds=5, seconds=400),
    bigger="Changes that come by themselves in long training, as of the paper's patch embedding.",
    picture=Picture("rise", "rise of the loss after the change, nat", "β2", log_y=False),
)
def spike_lag(cell: Change, seed: int, folder: Path) -> Numbers:
    """Whether a spike follows a few steps after the second moment was out of date.

    Adam trains a small decoder on a single batch until its gradients are small, then on other text. That the loss is high
    in the step of the change is the text's doing; what it rises by afterwards is the optimizer's. In the first run of this set-up,
    which was kept, RMS_t was above 7 with β2 = 0.999 and the loss fell from there: large steps in a useful direction are no spike.
    """
    model, shape = fresh(cell.choices, seed), (BATCH, cell.choices.context, 256)
    optimizer = torch.optim.AdamW(model.parameters(), cell.lr, betas=(0.9, cell.beta2))
    known = itertools.repeat(next(data("text", 1, *shape, seed)), cell.before)
    with sl.attach(model, optimizer, folder, every=1) as lens:
        for inputs, targets in itertools.chain(known, data("text", cell.after, *shape, seed + 1000)):
            loss = loss_of(model(inputs), targets)
            loss.backward()
            lens.grads_ready()
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
    run = sl.load(folder)
    losses = run["loss"].values[cell.before :]
    peak = int(np.argmax(losses[: LAG + 1]))
    return {"rms": float(np.nanmax(run["adam_rms"].values[cell.before])), "lag": float(peak), "rise": float(losses[peak] - losses[0])}
