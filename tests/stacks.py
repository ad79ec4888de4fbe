"""Stacks of residual blocks around a branch as people write it, and what a lens recorded of a few steps of one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import update

import stabilitylens as sl

HEADS, WIDTH, LENGTH, D = 4, 8, 12, 32


def observed(model, x, logdir, steps=1, **attach):
    """The run after a few steps, whose observed training is equal to the bit to the bare one."""
    results = []
    state = {n: t.clone() for n, t in model.state_dict().items()}
    for folder in (None, logdir):
        model.load_state_dict(state)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        lens = sl.attach(model.train(), optimizer, folder, every=1, **attach) if folder else None
        torch.manual_seed(1)
        for _ in range(steps):
            loss = model(x).square().mean()
            update(loss, optimizer, lens)
        if lens:
            assert not lens.guard.failures
            lens.close()
        results.append([loss.detach(), *(p.detach().clone() for p in model.parameters())])
    assert all(map(torch.equal, *results))
    model.load_state_dict(state)
    return sl.load(logdir)


class Stack(nn.Module):
    """Residual blocks around a function of the block and its normalised input."""

    class Block(nn.Module):
        def __init__(self, branch: nn.Module) -> None:
            super().__init__()
            self.norm, self.branch = nn.LayerNorm(D), branch

        def forward(self, x: Tensor) -> Tensor:
            return x + self.branch(self.norm(x))

    def __init__(self, make) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(self.Block(make()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def rotated(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


LAYOUTS = {
    "one after the other": lambda y: [t.unflatten(-1, (HEADS, WIDTH)) for t in y.chunk(3, -1)],
    "by head": lambda y: y.unflatten(-1, (HEADS, 3 * WIDTH)).chunk(3, -1),
    "three by head": lambda y: y.unflatten(-1, (HEADS, 3, WIDTH)).unbind(-2),
    "slices": lambda y: [y[..., i * D : (i + 1) * D].view(*y.shape[:2], HEADS, WIDTH) for i in range(3)],
    "grouped": lambda y: (
        y[..., :D].unflatten(-1, (HEADS, WIDTH)),
        *(t.unflatten(-1, (2, WIDTH)).repeat_interleave(2, 2) for t in y[..., D : D + 4 * WIDTH].chunk(2, -1)),
    ),
}


class Fused(nn.Module):
    """Self-attention on a fused projection, with QK-Norm and a rotation."""

    def __init__(self, layout, rotation, qk_norm: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.layout, self.rotation = nn.Linear(D, 3 * D), nn.Linear(D, D), layout, rotation
        self.scale_q, self.scale_k = (nn.RMSNorm(WIDTH) if qk_norm else nn.Identity() for _ in range(2))

    def projected(self, x: Tensor) -> list[Tensor]:
        return [t.transpose(1, 2) for t in self.layout(self.qkv(x))]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        q, k = self.rotation(self.scale_q(q)), self.rotation(self.scale_k(k))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
