"""The same training loop observed and not, compared to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from training import loss_of, tokens, update

import stabilitylens as sl
from stabilitylens.run import Run

#: a loop: it is given ``attach(model, optimizers, **options)``, trains, and returns its model and losses
Loop = Callable[[Callable[..., Any]], tuple[nn.Module, list[Tensor]]]


class Blind:
    """What a loop calls where there is no lens."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_a, **_k: None


def norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(t.detach().double().square().sum().item() for t in tensors))


def grad_norm(model: nn.Module, scale: float = 1.0) -> float:
    return norm(p.grad.double() / scale for p in model.parameters() if p.grad is not None)


def in_block(model: nn.Module, i: int) -> list[nn.Parameter]:
    return [p for n, p in model.named_parameters() if f"blocks.{i}." in n]


def left_behind(loop: Loop, attach: Callable[..., Any]) -> list[Tensor]:
    torch.manual_seed(0)
    model, losses = loop(attach)
    return [*losses, *(t.clone() for t in model.state_dict().values()), torch.get_rng_state()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(a, b, strict=True))


def observed(loop: Loop, logdir: Path, **options: Any) -> Run:
    """Run a loop bare, bare again, and observed; what it leaves behind must be equal. The recorded run."""
    lenses = []

    def attach(model: nn.Module, optimizers: Any, **more: Any) -> Any:
        lenses.append(sl.attach(model, optimizers, logdir, **({"every": 1} | options | more)))
        return lenses[-1]

    bare, again = (left_behind(loop, lambda *_a, **_k: Blind()) for _ in range(2))
    assert same(bare, again), "the loop is not equal to itself"
    assert same(bare, left_behind(loop, attach)), "the lens changed the training"
    for lens in lenses:
        assert not lens.guard.failures, lens.guard.failures
        lens.close()
    return sl.load(logdir)


def simple(make: Callable[[], nn.Module], steps: int = 3, loss: Callable[[nn.Module, Tensor], Tensor] = loss_of) -> Loop:
    """A plain loop over a model."""

    def loop(attach: Callable[..., Any]) -> tuple[nn.Module, list[Tensor]]:
        model, losses = make(), []
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
        lens = attach(model, optimizer)
        for _ in range(steps):
            value = loss(model, tokens())
            update(value, optimizer, lens)
            losses.append(value.detach())
        return model, losses

    return loop
