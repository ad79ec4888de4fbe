"""Training runs whose gradients go wrong at one step, under guards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from training import Decoder, tokens

import stabilitylens as sl

BAD = 13


def poison(model: nn.Module, value: float = float("nan")) -> None:
    next(model.parameters()).grad.view(-1)[3] = value


def loop(
    logdir: Path, set_guards: Callable[[sl.Lens, dict[str, Any]], None], steps: int = 20, *, bad: Callable[[nn.Module], None] = poison,
    leave_out: bool = False, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, **options: Any,
) -> tuple[nn.Module, torch.optim.Optimizer, sl.Run]:  # fmt: skip
    """A run whose gradients go wrong at step ``BAD``; ``leave_out`` never asks the optimizer for that step."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = make(model.parameters(), 1e-3)
    with sl.attach(model, optimizer, logdir, **options) as lens:
        here: dict[str, Any] = {"model": model, "optimizer": optimizer}
        set_guards(lens, here)
        for step in range(1, steps + 1):
            here["x"] = tokens()
            here["step"] = step
            loss = model(here["x"])
            lens.micro_step(loss)
            loss.backward()
            if step == BAD:
                bad(model)
            if not (leave_out and step == BAD):
                optimizer.step()
            optimizer.zero_grad()
            lens.step()
    return model, optimizer, sl.load(logdir)


def flat(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [v for state in optimizer.state_dict()["state"].values() for v in state.values() if isinstance(v, torch.Tensor)]


def events(run: sl.Run, kind: str = "guard") -> list[str]:
    return [e.text for e in run.events if e.kind == kind]
