"""A model small enough to know the answer, and trainings of it that are dumped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stabilitylens as sl

STEPS, BAD, WORDS, WIDTH = 14, 14, 16, 8


class Tiny(nn.Module):
    """An embedding, one attention call with a norm before it, and a head."""

    def __init__(self, spelled_out: bool = False) -> None:
        super().__init__()
        self.spelled_out = spelled_out
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        q, k, v = (p(self.norm(h)).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.q, self.k, self.v))
        if self.spelled_out:
            mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        return self.head(h + mixed.transpose(1, 2).flatten(2))


class Loop:
    """A training of ``Tiny`` that is dumped at its last step."""

    def __init__(self, make: Any = Tiny, optimizer: Any = torch.optim.AdamW, autocast: torch.dtype | None = None, **options: Any) -> None:
        self.make, self.optimizer, self.options, self.autocast = make, optimizer, {"lr": 1e-3} | options, autocast
        self.seen: list[dict[str, Any]] = []

    def parts(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = self.make()
        return model, self.optimizer(model.parameters(), **self.options)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor], lens: Any = None) -> Tensor:
        optimizer.zero_grad()
        for x in batches:
            with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
                logits = model(x)
                loss = F.cross_entropy(logits.flatten(0, 1), x.flatten())
            loss.backward()
        if lens is not None:
            lens.grads_ready()
        self.seen.append({"lr": optimizer.param_groups[0]["lr"], "dtype": logits.dtype, "grad": model.head.weight.grad.clone()} if hasattr(model, "head") else {})
        optimizer.step()
        return loss

    def train(self, folder: Path, rate: Any = None, prepare: Any = None) -> Path:
        model, optimizer = self.parts()
        if prepare is not None:
            prepare(model)
        with sl.attach(model, optimizer, folder, blackbox=sl.BlackBox(snapshot_every=5)) as lens:
            for step in range(1, STEPS + 1):
                if rate is not None:
                    optimizer.param_groups[0]["lr"] = rate(step)
                x = torch.randint(WORDS, (4, 6), generator=torch.Generator().manual_seed(step))
                loss = self.step(model, optimizer, [lens.batch(x)], lens)
                lens.step(loss * (100 if step == BAD else 1))
            found = sorted((folder / "stabilitylens" / "incidents").glob("step_*[0-9]"))
        assert len(found) == 1, found
        return found[0]

    def again(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        """The same step; the loss that is told is a hundredfold for the batch of the incident."""
        bad = torch.equal(batches[0], torch.randint(WORDS, (4, 6), generator=torch.Generator().manual_seed(BAD)))
        return self.step(model, optimizer, batches) * (100 if bad else 1)

    def table(self, folder: Path, *names: str, **options: Any) -> Any:
        self.seen.clear()
        return sl.counterfactuals(folder, *self.parts(), self.again, names=names, **options)
