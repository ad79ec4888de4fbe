"""Two processes: training is equal to the bit, one of them records, and what is sharded is said to be."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import stabilitylens as sl

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not dist.is_gloo_available(), reason="needs gloo")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def process(rank: int, port: int, folder: str, kind: str, observe: bool) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from training import Decoder

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Decoder(dropout=0.0)
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    lens = sl.attach(model, optimizer, folder, every=1) if observe else None
    torch.manual_seed(rank)  # unequal data
    losses, norms = [], []
    for _ in range(3):
        loss = model(torch.randint(0, 8 if rank else 64, (2, 16)))
        loss.backward()
        if lens:
            lens.grads_ready()
        if kind == "ddp":
            norms.append(sum(p.grad.double().square().sum() for p in model.parameters()).sqrt())
        optimizer.step()
        optimizer.zero_grad()
        if lens:
            lens.step(loss)
        losses.append(loss.detach())
    if lens:
        assert not lens.guard.failures, lens.guard.failures
        lens.close()
    kept = [getattr(p, "to_local", lambda p=p: p)().detach().clone() for p in model.parameters()]
    torch.save((torch.stack(losses), norms, kept), Path(folder) / f"{kind}-{observe}-{rank}.pt")
    dist.destroy_process_group()


def run(folder: Path, kind: str, observe: bool):
    mp.spawn(process, (free_port(), str(folder), kind, observe), nprocs=2)
    return [torch.load(folder / f"{kind}-{observe}-{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes(kind, tmp_path):
    bare, seen = run(tmp_path, kind, False), run(tmp_path, kind, True)
    for a, b in zip(bare, seen, strict=True):
        assert torch.equal(a[0], b[0])
        assert all(map(torch.equal, a[2], b[2]))
    files = sorted(p.name.split(".")[0] for p in (tmp_path / "stabilitylens").iterdir())
    assert files == ["arrays", "events"]
    recorded = sl.load(tmp_path)
    assert recorded["loss"].values == pytest.approx(bare[0][0].numpy(), rel=1e-6)
    assert recorded["resid_rms"].values.shape == (3, 3)
    assert recorded["max_attn_logit"].labels["attention"][0] == "blocks.0.attn"
    if kind == "ddp":
        assert recorded["grad_norm"].values == pytest.approx([n.item() for n in bare[1][1]], rel=1e-5)
    else:
        assert "sharded" in recorded.why_missing("grad_norm")
        assert "sharded" in recorded.why_missing("update_ratio")
