"""Trainings of the reference Transformer that go wrong by themselves, for the tests of counterfactuals; replayed in a new process too."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stabilitylens as sl
from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._data import data
from stabilitylens.reproductions._model import fresh, loss_of
from stabilitylens.reproductions._parts import FeedForward

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        rate: learning rate of a step.
        batch: makes what a step is given of the text and of the text one byte on.
        prepare: changes the model that is built.
    """

    steps: int
    rate: Callable[[int], float]
    batch: Callable[[int, Batch], Batch] = lambda step, batch: batch
    choices: Choices = field(default_factory=lambda: Choices(depth=2, width=32, heads=2, context=64))
    rows: int = 8
    clip: float | None = 1.0
    fp16: bool = False
    prepare: Callable[[nn.Module], None] = lambda model: None
    snapshot_every: int = 5


def warm(peak: float) -> Callable[[int], float]:
    return lambda step: peak * min(1.0, step / 20)


def random_bytes(step: int, batch: Batch) -> Batch:
    """Some windows of one batch are noise, with targets that are noise of their own."""
    if step != BAD:
        return batch
    generator = torch.Generator().manual_seed(step)
    inputs, targets = (x.clone() for x in batch)
    for x in (inputs, targets):
        x[SPOILED] = torch.randint(256, (len(SPOILED), x.shape[1]), generator=generator)
    return inputs, targets


def jump(step: int) -> float:
    return warm(1e-2)(step) * (30 if BAD <= step < BAD + 5 else 1)


def enlarge(model: nn.Module) -> None:
    """Feed-forward activations are LARGER times as large as they would be in so small a model, and their readers undo it."""
    for module in model.modules():
        if isinstance(module, FeedForward):
            module.w1.register_forward_hook(lambda _m, _a, out: out * LARGER / LARGER)


BAD, SPOILED, LARGER = 90, [1, 2, 4, 6, 7], 6400.0
CASES = {
    "healthy": Case(100, warm(1e-2)),
    "bad_batch": Case(93, warm(1e-2), batch=random_bytes),
    "lr_jump": Case(97, jump),
    "attention": Case(40, warm(0.3), choices=Choices(depth=2, width=64, heads=2, context=64)),
    "fp16": Case(40, warm(0.1), fp16=True, prepare=enlarge, snapshot_every=4),
}  # fmt: skip


def parts(case: Case, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = fresh(case.choices, seed)
    case.prepare(model)
    return model, torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95))


def stepping(case: Case, lens: Any = None) -> Callable[[nn.Module, torch.optim.Optimizer, list[Batch]], Tensor]:
    """One whole step, in training and in replays alike."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> Tensor:
        for inputs, targets in batches:
            with torch.autocast("cpu", torch.float16, enabled=case.fp16):
                loss = loss_of(model(inputs), targets)
            loss.backward()
        if lens is not None:
            lens.grads_ready()
        if case.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def batches(case: Case, seed: int) -> Iterator[tuple[int, Batch]]:
    found = data("text", case.steps, case.rows, case.choices.context, case.choices.vocabulary, seed)
    for step, batch in enumerate(found, 1):
        yield step, case.batch(step, batch)


def train(name: str, seed: int, folder: Path) -> list[float]:
    """Train with a black box; the losses."""
    case = CASES[name]
    model, optimizer = parts(case, seed)
    losses = []
    with sl.attach(model, optimizer, folder, every=10, blackbox=sl.BlackBox(snapshot_every=case.snapshot_every)) as lens:
        step_fn = stepping(case, lens)
        for step, batch in batches(case, seed):
            for group in optimizer.param_groups:
                group["lr"] = case.rate(step)
            lens.batch(batch, ids=[f"window {step}.{row}" for row in range(case.rows)])
            loss = step_fn(model, optimizer, [batch])
            lens.step(loss)
            losses.append(float(loss))
            if dumped(folder):
                break
        assert not lens.guard.failures, lens.guard.failures
    return losses


def dumped(folder: Path) -> list[Path]:
    return sorted((folder / "stabilitylens" / "incidents").glob("step_*[0-9]"))


def replayed(name: str, folder: str) -> sl.Replay:
    model, optimizer = parts(CASES[name], seed=99)
    return sl.replay(folder, model, optimizer, stepping(CASES[name]))


def tried(name: str, folder: Path, **options: Any) -> Any:
    model, optimizer = parts(CASES[name], seed=99)
    return sl.counterfactuals(folder, model, optimizer, stepping(CASES[name]), **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(replayed(sys.argv[1], sys.argv[2]).to_dict()))
