"""Training runs that go wrong, for the tests of the black box; the same module runs them again in a new process."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import Decoder, tokens

import stabilitylens as sl

STEPS, BAD = 20, 18


@dataclass
class Parts:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    scaler: Any = None
    clip: float = 1.0

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, lens: Any = None, given: bool = False) -> Any:
        """One optimizer step, in training and in the replay alike."""
        losses = []
        for i, batch in enumerate(batches):
            if given and lens is not None:
                lens.batch(batch, ids=[f"doc{10 * i + j}" for j in range(2)])
            value = model(**batch) if isinstance(batch, dict) else model(batch)
            scaled = value / len(batches) if self.scaler is None else self.scaler.scale(value / len(batches))
            scaled.backward()
            losses.append(value)
            if lens is not None:
                lens.micro_step(value)
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        if lens is not None:
            lens.grads_ready()
        nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()
        optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()
        return losses


class Half(torch.autograd.Function):
    """Gradients as fp16 would hold them: what is beyond 65504 is infinite."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad.half().float()


class Gain(nn.Module):
    def forward(self, h: Tensor, gain: Tensor) -> Tensor:
        return h * gain


class Gained(Decoder):
    """The hidden state after the first block is multiplied by what the batch says; NumPy and Python draw numbers too."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = Gain()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        self.seen += 1
        noise = 1e-2 * (random.random() + np.random.random())
        h = self.gain(self.blocks[0](self.embedding(x) + noise), gain)
        h = self.blocks[2](self.blocks[1](h)) + 1e-3 * self.seen
        return F.cross_entropy(self.head(self.norm(h))[:, :-1].flatten(0, 1), x[:, 1:].flatten())


class Scaled(Decoder):
    def forward(self, x: Tensor) -> Tensor:
        h = Half.apply(self.embedding(x))
        for block in self.blocks:
            h = Half.apply(block(h))
        return F.cross_entropy(Half.apply(self.head(self.norm(h)))[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def accumulating() -> Parts:
    model = Decoder(dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return Parts(model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=300))


def scaling() -> Parts:
    model = Scaled()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=5)
    return Parts(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), scaler=scaler)


def poisoned() -> Parts:
    model = Gained()
    return Parts(model, torch.optim.Adam([{"params": model.blocks.parameters(), "lr": 3e-3}, {"params": model.head.parameters()}]))


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def pairs(step: int) -> list[Any]:
    return [tokens(), tokens()]


def with_gain(step: int) -> list[Any]:
    return [{"x": tokens(), "gain": torch.tensor(math.inf if step == BAD and i else 1.0)} for i in range(2)]


KINDS: dict[str, tuple[Callable[[], Parts], Callable[[int], list[Any]], bool]] = {
    "accumulating": (accumulating, pairs, False),
    "given": (accumulating, pairs, True),
    "scaling": (scaling, pairs, False),
    "poisoned": (poisoned, with_gain, False),
}


def train(kind: str, folder: Path, *, dump: bool = True, steps: int = STEPS, box: Any = None, lens_on: bool = True) -> list[float]:
    """Train, and dump where nothing is found to be wrong; the losses."""
    make, data, given = KINDS[kind]
    seed(0)
    parts = make()
    parts.model.train()
    if box is None:
        box = sl.BlackBox(snapshot_every=5, scheduler=parts.scheduler)
    lens = sl.attach(parts.model, parts.optimizer, folder, scaler=parts.scaler, blackbox=box) if lens_on else None
    losses = []
    for step in range(1, steps + 1):
        several = parts.step(parts.model, parts.optimizer, data(step), lens, given)
        losses.append(float(sum(v.detach().double() for v in several) / len(several)))
        if lens is not None:
            lens.step()
    if lens is not None:
        if dump:
            assert lens.dump() is not None
        assert not lens.guard.failures, lens.guard.failures
        lens.close()
    return losses


def again(kind: str, incident: Path, **options: Any) -> sl.Replay:
    """Replay with a freshly made model."""
    seed(1)
    parts = KINDS[kind][0]()
    parts.model.eval()
    return sl.replay(incident, parts.model, parts.optimizer, parts.step, parts.scheduler, parts.scaler, **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({kind: again(kind, Path(folder)).to_dict() for kind, folder in json.loads(sys.argv[1]).items()}))
