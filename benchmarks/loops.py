"""Training loops that are stepped from outside: the models of the overhead table, with and without an observer."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import stabilitylens as sl

VOCABULARY = 1024
CLASSES = 10


@dataclass(frozen=True)
class Setting:
    """A model and the batches that it trains on."""

    make: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Tensor]]


def llama(layers: int, width: int) -> nn.Module:
    """A decoder as transformers has it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
            num_attention_heads=max(1, width // 64), attn_implementation="sdpa", use_cache=False,
        )
    )  # fmt: skip


def gpt2(layers: int, width: int) -> nn.Module:
    """A decoder with learnt positions and tied embeddings."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=256, n_embd=width, n_layer=layers, n_head=width // 64)
    return GPT2LMHeadModel(config)


def vit(side: int) -> nn.Module:
    """ViT-S/16 for images of one size."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, image_size=side, num_labels=CLASSES
    )
    return ViTForImageClassification(config)


def tokens(batch: int, length: int) -> Callable[[], dict[str, Tensor]]:
    """Batches of random tokens."""

    def draw() -> dict[str, Tensor]:
        x = torch.randint(0, VOCABULARY, (batch, length))
        return {"input_ids": x, "labels": x}

    return draw


def images(batch: int, side: int) -> Callable[[], dict[str, Tensor]]:
    """Batches of random images."""
    return lambda: {"pixel_values": torch.randn(batch, 3, side, side), "labels": torch.randint(0, CLASSES, (batch,))}


SETTINGS = {
    "llama-4x256": Setting(lambda: llama(4, 256), tokens(8, 128)),
    "llama-4x64": Setting(lambda: llama(4, 64), tokens(8, 128)),
    "llama-16x64": Setting(lambda: llama(16, 64), tokens(8, 128)),
    "llama-64x64": Setting(lambda: llama(64, 64), tokens(8, 128)),
    "gpt2-12x768": Setting(lambda: gpt2(12, 768), tokens(4, 256)),
    "vit-s": Setting(lambda: vit(224), images(4, 224)),
}


class Observer(Protocol):
    """What a loop calls; each tool is one of these."""

    def before_clipping(self, loss: Tensor) -> None:
        """Between backward and clipping."""

    def after_update(self, loss: Tensor) -> None:
        """After the optimizer's step."""

    def close(self) -> None:
        """Detach."""


#: from model, optimizer and folder
Attach = Callable[[nn.Module, torch.optim.Optimizer, Path], Observer]


class Ours:
    """The lens."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, logdir: Path, **options: Any) -> None:
        self.lens = sl.attach(model, optimizer, logdir, **options)

    def before_clipping(self, loss: Tensor) -> None:
        """Read the gradients."""
        self.lens.grads_ready()

    def after_update(self, loss: Tensor) -> None:
        """End the step."""
        self.lens.step(loss)

    def close(self) -> None:
        """Detach."""
        self.lens.close()


def ours(**options: Any) -> Attach:
    """A lens with these options."""
    return lambda model, optimizer, logdir: Ours(model, optimizer, logdir, **options)


class Loop:
    """One training loop; the CPU time of each step is kept."""

    def __init__(self, model: nn.Module, attach: Attach | None, logdir: Path, *, compiled: bool = False) -> None:
        self.model = copy.deepcopy(model).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.observer = attach(self.model, self.optimizer, logdir) if attach else None
        self.forward = torch.compile(self.model) if compiled else self.model
        self.seconds: list[float] = []

    def step(self, batch: dict[str, Tensor]) -> None:
        """One optimizer step."""
        began = time.process_time()
        loss = self.forward(**batch).loss
        loss.backward()
        if self.observer:
            self.observer.before_clipping(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.observer:
            self.observer.after_update(loss)
        self.seconds.append(time.process_time() - began)

    def close(self) -> None:
        """Detach the observer."""
        if self.observer:
            self.observer.close()
