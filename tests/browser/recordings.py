"""Runs for the browser: really trained ones, one with a planted spike of a head, and one with hostile names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import stabilitylens as sl
from stabilitylens.header import Header, MetricMeta
from stabilitylens.writers.recording import RunWriter
from tests.training import VOCABULARY, Decoder

LAYERS, HEADS, WIDTH = 6, 4, 32
STEPS, EVERY = 120, 2
#: where the head's queries are enlarged for one step
SPIKE_STEP, SPIKE_LAYER, SPIKE_HEAD = 80, 1, 2
HOSTILE = "x<img src=x onerror=window.hacked=1><svg onload=window.hacked=1>"


def text(batch: int, length: int) -> torch.Tensor:
    """Pieces of this file, as real text has structure to learn."""
    data = torch.tensor(list(Path(__file__).read_bytes())) % VOCABULARY
    begins = torch.randint(0, len(data) - length, (batch,))
    return torch.stack([data[begin:begin + length] for begin in begins.tolist()])


def train(folder: Path, *, spike: bool = False, qk_norm: bool = False, steps: int = STEPS, lr: float = 3e-3) -> None:
    """Train a small decoder under observation; with a spike, one head's queries are 200 times larger in one step."""
    torch.manual_seed(0)
    model = Decoder(WIDTH, HEADS, LAYERS, dropout=0.0, qk_norm=qk_norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    rows = slice(SPIKE_HEAD * WIDTH // HEADS, (SPIKE_HEAD + 1) * WIDTH // HEADS)
    weight = model.blocks[SPIKE_LAYER].attn.qkv.weight
    with sl.attach(model, optimizer, folder, every=EVERY) as lens:
        for step in range(1, steps + 1):
            x = text(4, 32)
            kept = weight.detach().clone()
            if spike and step == SPIKE_STEP:
                with torch.no_grad():
                    weight[rows] *= 200.0
            loss = model(x)
            optimizer.zero_grad()
            loss.backward()
            if spike and step == SPIKE_STEP:
                with torch.no_grad():
                    weight.copy_(kept)
                    weight.grad.zero_()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lens.step(loss)


def hostile(folder: Path) -> None:
    """Every name of a run that a log may choose, as an attack."""
    names = tuple(f"{HOSTILE}{i}" for i in range(3))
    metric = MetricMeta(HOSTILE, HOSTILE, ("layer",), HOSTILE)
    writer = RunWriter(folder / HOSTILE)
    writer.header(Header(metrics={HOSTILE: metric}, labels={"layer": names}, sampling={HOSTILE: HOSTILE}))
    for step in range(60):
        writer.step(step, {"loss": 3.0 if step != 40 else 30.0, HOSTILE: 1.0})
        writer.sample(step, {f"{HOSTILE}/layer": np.array([1.0, np.nan if step == 20 else 2.0, np.inf if step == 30 else 3.0])})
    writer.event(5, HOSTILE, HOSTILE)
    writer.close()


def long(folder: Path, samples: int = 20_000, at: int = 12_345) -> None:
    """Many samples, the largest logit of one head and the loss enlarged at a single one of them."""
    rng = np.random.default_rng(0)
    logits = 3 + 0.1 * rng.random((samples, LAYERS, HEADS), dtype=np.float32)
    loss = 2 + 0.01 * rng.random(samples)
    logits[at, SPIKE_LAYER, SPIKE_HEAD], loss[at] = 60.0, 9.0
    meta = {
        "max_attn_logit": MetricMeta("max_attn_logit", "1", ("attention head",), "largest logit"),
        "loss": MetricMeta("loss", "nat", ("",), "cross-entropy"),
    }
    names = tuple(f"blocks.{i}" for i in range(LAYERS))
    writer = RunWriter(folder)
    writer.header(Header(metrics=meta, labels={"layer": names, "attention": names}))
    for step in range(samples):
        writer.step(step, {"loss": float(loss[step])})
        writer.sample(step, {"max_attn_logit/attention_head": logits[step]})
    writer.close()
