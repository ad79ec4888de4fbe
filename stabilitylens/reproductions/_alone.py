"""An optimizer alone: a parameter whose gradients are given, under observation."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

import stabilitylens as sl
from stabilitylens.run import Run

#: steps after which no bias is left to correct, whatever β is in use
LONG = 1e6


class _One(nn.Module):
    """A linear layer, so that the lens has a matrix to look at."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)

    def forward(self, x: Float[Tensor, "row d"]) -> Float[Tensor, "row d"]:
        """Multiply."""
        out: Tensor = self.layer(x)
        return out


def _settle(optimizer: torch.optim.Optimizer, gradient: Tensor) -> None:
    """Bring Adam to where steady gradients lead: m = g, v = g², and no correction for a short past."""
    for state in optimizer.state.values():
        state["exp_avg"].copy_(gradient)
        state["exp_avg_sq"].copy_(gradient.square())
        state["step"].fill_(LONG)


def adam_alone(sizes: list[float], *, beta2: float, eps: float, seed: int, folder: Path, width: int = 8) -> Run:
    """Let Adam take steps on gradients ±size, one size a step, with fixed signs.

    After the first step the moments are set to what endless steps of that size would leave.

    Returns:
        The recording, with ``adam_rms`` and ``update_rms`` at every step.
    """
    generator = torch.Generator().manual_seed(seed)
    model = _One(width)
    signs = torch.randint(2, (width, width), generator=generator) * 2.0 - 1
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, beta2), eps=eps, weight_decay=0.0)
    with sl.attach(model, optimizer, folder, every=1) as lens:
        for size in sizes:
            model.layer.weight.grad = signs * size
            lens.grads_ready()
            optimizer.step()
            lens.step(size)
            if lens.step_number == 2:
                _settle(optimizer, signs * size)
    return sl.load(folder)
