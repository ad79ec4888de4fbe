"""Ways to train a published architecture: checkpointed, in mixed precision, on two processes; bare and observed."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from processes import whole
from test_architectures import build, first_tensor
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from training import keep_products

import stabilitylens as sl
from stabilitylens.hooks.anatomy import find_blocks

STEPS = 2
#: torch's function has no soft-cap
BY_HAND = {"gemma2"}


def checkpointed(model: nn.Module, **options: Any) -> nn.Module:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    return model


def sharded(model: nn.Module) -> nn.Module:
    for _, block in find_blocks(model):
        fully_shard(block)
    return fully_shard(model)


#: what is done to the model before it is trained
MODELS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "reentrant": functools.partial(checkpointed, use_reentrant=True),
    "checkpointed": functools.partial(checkpointed, use_reentrant=False),
    "selective": functools.partial(
        checkpointed, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, keep_products)
    ),
    "ddp": functools.partial(DistributedDataParallel, find_unused_parameters=True),
    "fsdp2": sharded,
}


def train(name: str, way: str, folder: Path | None, row: int | None = None) -> list[torch.Tensor]:
    """Losses, weights and random state after two steps; of one row of the batch where processes share it."""
    model, inputs = build(name, "eager" if name in BY_HAND else "sdpa")
    if row is not None:
        inputs = {k: v[row : row + 1] for k, v in inputs.items()}
    model = MODELS.get(way, lambda m: m)(model)
    mixed = way == "amp"
    optimizer, scaler = torch.optim.AdamW(model.parameters(), 1e-3), torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=mixed)
    lens = sl.attach(model, optimizer, folder, every=1, scaler=scaler) if folder else None
    losses = []
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = first_tensor(model(**inputs)).float().square().mean()
        scaler.scale(loss).backward()
        if lens:
            lens.grads_ready()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if lens:
            lens.step(loss)
        losses.append(loss.detach().clone())
    if lens:
        assert not lens.guard.failures, lens.guard.failures
        lens.close()
    return [*losses, *whole(model.state_dict()).values(), torch.get_rng_state()]


def on_each_rank(rank: int, cases: list[tuple[str, str]], folder: str) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Bare, bare again, and observed."""
    warnings.simplefilter("ignore")
    out = {}
    for name, way in cases:
        out[name, way] = (*(train(name, way, None, rank) for _ in range(2)), train(name, way, Path(folder) / f"{name}-{way}", rank))
        dist.barrier()
    return out
