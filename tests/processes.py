"""Several processes for tests: gloo, unequal data, and a model that every kind of parallelism can split."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from training import update

import stabilitylens as sl

#: a run that takes longer hangs
LIMIT = 120.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.tensor", "stabilitylens.hooks"])


class Attention(nn.Module):
    """Causal self-attention with as many heads as its projections give."""

    def __init__(self, d: int, d_head: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.d_head = d_head

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2) for p in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, d: int, d_head: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(d), Attention(d, d_head), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Gives the logits; any of its parts may be missing, as in a pipeline stage."""

    def __init__(self, depth: int = 4, d: int = 16, d_head: int = 4, vocabulary: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d)
        self.blocks = nn.ModuleDict({str(i): Block(d, d_head) for i in range(depth)})
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.embedding is None else self.embedding(x)
        for block in self.blocks.values():
            h = block(h)
        return h if self.head is None else self.head(self.norm(h))


def model(dtype: torch.dtype = torch.float64, **shape: int) -> Model:
    torch.manual_seed(0)
    return Model(**shape).to(dtype)


def batch(step: int, place: int) -> Tensor:
    """Data of one place among the data-parallel processes; each has another range of tokens."""
    generator = torch.Generator().manual_seed(1000 * step + place)
    return torch.randint(0, 32 >> place, (2, 12), generator=generator)


def batches(step: int, places: Iterable[int]) -> Tensor:
    return torch.cat([batch(step, place) for place in places])


def loss_of(logits: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def train(
    wrapped: nn.Module, data: Callable[[int], Tensor], folder: str | None, *, steps: int = 3, every: Any = 1, lr: float = 1e-2,
    before_close: Callable[[Any], None] = lambda lens: None,
) -> dict[str, Any]:  # fmt: skip
    """Train, with a lens where there is a folder; what is left behind, for comparison to the bit."""
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr)
    lens = sl.attach(wrapped, optimizer, folder, every=every) if folder else None
    losses = []
    for step in range(steps):
        x = data(step)
        loss = loss_of(wrapped(x), x)
        update(loss, optimizer, lens)
        losses.append(loss.detach())
    if lens:
        before_close(lens)
        assert not lens.guard.failures, lens.guard.failures
        lens.close()
    return {"losses": losses, "state": whole(wrapped.state_dict()), "rng": torch.get_rng_state()}


def whole(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: getattr(v, "_local_tensor", v).detach().clone() for k, v in state.items()}


def oracle(folder: Path, places: int, **options: Any) -> sl.Run:
    """The same training in one process, on the data of all of them."""
    train(model(), lambda step: batches(step, range(places)), str(folder), **options)
    return sl.load(folder)


def as_bytes(result: Any) -> bytes:
    """Tensors would go through shared memory of a process that has ended."""
    out = io.BytesIO()
    torch.save(result, out)
    return out.getvalue()


def _start(rank: int, size: int, port: int, worker: Callable[..., Any], args: tuple[Any, ...], out: Any) -> None:
    os.environ.setdefault("STABILITYLENS_PATIENCE", "20")
    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, None, False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        result = worker(rank, *args)
        out.put((rank, as_bytes(result), None))
        out.close()
        out.join_thread()
        dist.destroy_process_group()
    except Exception:
        out.put((rank, None, traceback.format_exc()))
        out.close()
        out.join_thread()
        sys.exit(1)


def on(size: int, worker: Callable[..., Any], *args: Any, limit: float = LIMIT) -> list[Any]:
    """What ``worker(rank, *args)`` returns in each of so many processes; fails where one raises or none comes to an end."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    out = _CONTEXT.Queue()
    given = [_CONTEXT.Process(target=_start, args=(r, size, store.port, worker, args, out), daemon=True) for r in range(size)]
    for process in given:
        process.start()
    results: dict[int, Any] = {}
    try:
        for _ in range(size):
            rank, result, error = out.get(timeout=limit)
            assert error is None, f"rank {rank}:\n{error}"
            results[rank] = torch.load(io.BytesIO(result), weights_only=False)
    finally:
        for process in given:
            process.join(10)
            if process.is_alive():
                process.kill()
    return [results[rank] for rank in range(size)]
