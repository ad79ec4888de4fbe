"""A loop to time on an accelerator, bare or observed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stabilitylens as sl

#: steps between two synchronisations; a multiple of the sampling interval
BLOCK = 20


class Training:
    """A GPT-2 in bf16 autocast, bare or observed, stepped in blocks."""

    def __init__(self, device: str, logdir: Path | None, size: tuple[int, int, int, int], mode: str | None, **options: Any) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        layers, width, self.batch, self.length = size
        torch.manual_seed(0)
        config = GPT2Config(
            n_layer=layers, n_embd=width, n_head=max(1, width // 64), n_positions=self.length, use_cache=False, attn_implementation="sdpa"
        )
        self.device, self.vocabulary = device, config.vocab_size
        self.model: nn.Module = GPT2LMHeadModel(config).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=device == "cuda")
        self.lens = sl.attach(self.model, self.optimizer, logdir, **options) if logdir else None
        self.forward = torch.compile(self.model, mode=mode) if mode else self.model

    def step(self) -> None:
        """One optimizer step on random tokens."""
        x: Tensor = torch.randint(0, self.vocabulary, (self.batch, self.length), device=self.device)
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.forward(input_ids=x, labels=x).loss
        loss.backward()
        if self.lens:
            self.lens.grads_ready()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.lens:
            self.lens.step(loss.detach())

    def block(self) -> float:
        """Seconds a step, over a block of steps."""
        synchronize(self.device)
        began = time.perf_counter()
        for _ in range(BLOCK):
            self.step()
        synchronize(self.device)
        return (time.perf_counter() - began) / BLOCK

    def close(self) -> None:
        """Detach."""
        if self.lens:
            self.lens.close()


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()
