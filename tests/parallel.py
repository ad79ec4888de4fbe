"""The kinds of parallelism under test: each trains the same model, bare and observed, in every process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from processes import Model, batch, batches, loss_of, model, train, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import stabilitylens as sl

Kind = Callable[[int, str | None], dict[str, Any]]


def sharded(m: Model, **options: Any) -> Model:
    for block in m.blocks.values():
        fully_shard(block, **options)
    return fully_shard(m, **options)


def tensor_parallel(m: Model, mesh: DeviceMesh) -> Model:
    plan = {"attn.q": ColwiseParallel(), "attn.k": ColwiseParallel(), "attn.v": ColwiseParallel(), "up": ColwiseParallel()}
    for block in m.blocks.values():
        parallelize_module(block, mesh, {**plan, "attn.out": RowwiseParallel(), "down": RowwiseParallel()})
    return m


def sequence_parallel(m: Model, mesh: DeviceMesh) -> Model:
    whole_sequence = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for block in m.blocks.values():
        parallelize_module(block, mesh, {
            "norm1": SequenceParallel(), "norm2": SequenceParallel(), "attn": whole_sequence,
            "attn.q": ColwiseParallel(), "attn.k": ColwiseParallel(), "attn.v": ColwiseParallel(),
            "attn.out": RowwiseParallel(output_layouts=Shard(1)), "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        })  # fmt: skip
    parallelize_module(m, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })  # fmt: skip
    return m


def ddp(rank: int, folder: str | None) -> dict[str, Any]:
    return train(DistributedDataParallel(model()), lambda step: batch(step, rank), folder)


def ddp4(rank: int, folder: str | None) -> dict[str, Any]:
    return ddp(rank, folder)


def fsdp2(rank: int, folder: str | None) -> dict[str, Any]:
    return train(sharded(model()), lambda step: batch(step, rank), folder)


def fsdp2_sparse(rank: int, folder: str | None) -> dict[str, Any]:
    """Sampled at steps 1 and 4 of 6; the gradient norm of every step arrives all the same."""
    return train(sharded(model()), lambda step: batch(step, rank), folder, steps=6, every=4)


def fsdp2_not_resharded(rank: int, folder: str | None) -> dict[str, Any]:
    return train(sharded(model(), reshard_after_forward=False), lambda step: batch(step, rank), folder)


def fsdp2_mixed(rank: int, folder: str | None) -> dict[str, Any]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(sharded(model(torch.float32), mp_policy=policy), lambda step: batch(step, rank), folder)


def hsdp(rank: int, folder: str | None) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return train(sharded(model(), mesh=mesh), lambda step: batch(step, rank), folder)


def by_hand(rank: int, folder: str | None) -> dict[str, Any]:
    """Data parallel without any wrapper: gradients averaged by the loop's own hooks."""
    m = model()

    def average(p: nn.Parameter) -> None:
        dist.all_reduce(p.grad)
        p.grad.div_(dist.get_world_size())

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(average)
    return train(m, lambda step: batch(step, rank), folder)


def fsdp1(rank: int, folder: str | None, use_orig_params: bool = True) -> dict[str, Any]:
    m, options = model(), {"use_orig_params": use_orig_params, "device_id": torch.device("cpu")}
    for name, block in m.blocks.items():
        m.blocks[name] = FullyShardedDataParallel(block, **options)
    return train(FullyShardedDataParallel(m, **options), lambda step: batch(step, rank), folder)


def fsdp1_flat(rank: int, folder: str | None) -> dict[str, Any]:
    return fsdp1(rank, folder, False)


def tp(rank: int, folder: str | None) -> dict[str, Any]:
    return train(tensor_parallel(model(), init_device_mesh("cpu", (2,))), lambda step: batches(step, (0, 1)), folder)


def sp(rank: int, folder: str | None) -> dict[str, Any]:
    return train(sequence_parallel(model(), init_device_mesh("cpu", (2,))), lambda step: batches(step, (0, 1)), folder)


def fsdp2_tp(rank: int, folder: str | None) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    m = sharded(tensor_parallel(model(), mesh["tensor"]), mesh=mesh["data"])
    return train(m, lambda step: batch(step, rank // 2), folder)


def stage_of(index: int, count: int, numbered_from_0: bool) -> Model:
    m = model()
    mine = list(m.blocks.items())[len(m.blocks) // count * index :][: len(m.blocks) // count]
    m.blocks = nn.ModuleDict({str(i) if numbered_from_0 else name: block for i, (name, block) in enumerate(mine)})
    if index:
        m.embedding = None
    if index < count - 1:
        m.norm = m.head = None
    return m


def pipeline(
    rank: int, folder: str | None, *, stages: int = 2, places: int = 1, numbered_from_0: bool = True
) -> dict[str, Any]:
    index, place = rank % stages, rank // stages
    m = stage_of(index, stages, numbered_from_0)
    mesh = init_device_mesh("cpu", (places, stages), mesh_dim_names=("data", "stage"))
    if places > 1:
        sharded(m, mesh=mesh["data"])
    stage = PipelineStage(m, index, stages, torch.device("cpu"), group=mesh["stage"].get_group())
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(m.parameters(), 1e-2)
    lens = sl.attach(m, optimizer, folder, every=1) if folder else None
    losses = []
    for step in range(3):
        x, micro = batch(step, place) if places > 1 else batches(step, (0, 1)), []
        _ = schedule.step(*(() if index else (x,)), target=x if index == stages - 1 else None, losses=micro)
        if lens:
            lens.grads_ready()
        optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(micro).mean().detach() if micro else None
        if lens:
            lens.step(loss)
        losses += [loss] if micro else []
    if lens:
        assert not lens.guard.failures, lens.guard.failures
        lens.close()
    return {"losses": losses, "state": whole(m.state_dict()), "rng": torch.get_rng_state()}


def pp(rank: int, folder: str | None) -> dict[str, Any]:
    return pipeline(rank, folder, numbered_from_0=False)


def pp_numbered_from_0(rank: int, folder: str | None) -> dict[str, Any]:
    return pipeline(rank, folder)


def pp4(rank: int, folder: str | None) -> dict[str, Any]:
    return pipeline(rank, folder, stages=4)


def pp_fsdp2(rank: int, folder: str | None) -> dict[str, Any]:
    return pipeline(rank, folder, places=2)


class Experts(nn.Module):
    """Top-1 among four experts in one fused parameter, of which a process may hold some."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.router, self.weight = nn.Linear(d, 4, bias=False), nn.Parameter(torch.randn(4, d, d) / d**0.5)

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = self.router(x).softmax(-1).topk(1, -1)
        if not isinstance(self.weight, DTensor):
            return gate * self.compute(x, chosen, self.weight, 0)
        mesh, local = self.weight.device_mesh, self.weight.to_local()
        x = DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
        y = self.compute(x, chosen, local, mesh.get_local_rank() * len(local))
        return gate * DTensor.from_local(y, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()]).to_local()

    def compute(self, x: Tensor, chosen: Tensor, weight: Tensor, first: int) -> Tensor:
        y = torch.zeros_like(x)
        for i, w in enumerate(weight.unbind(0)):
            y = y + (chosen == first + i) * F.gelu(x @ w)
        return y


def mixture() -> Model:
    m = model()
    torch.manual_seed(1)
    for block in m.blocks.values():
        block.up, block.down = Experts(16).double(), nn.Identity()
    return m


def ddp_experts(rank: int, folder: str | None) -> dict[str, Any]:
    return train(DistributedDataParallel(mixture()), lambda step: batch(step, rank), folder)


def fsdp2_experts(rank: int, folder: str | None) -> dict[str, Any]:
    return train(sharded(mixture()), lambda step: batch(step, rank), folder)


def fsdp2_ep(rank: int, folder: str | None) -> dict[str, Any]:
    """Experts spread over one dimension of a mesh, everything sharded over the other."""
    mesh, m = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "expert")), mixture()
    for block in m.blocks.values():
        block.up.weight = nn.Parameter(distribute_tensor(block.up.weight.data, mesh["expert"], [Shard(0)]))
    return train(sharded(m, mesh=mesh["data"]), lambda step: batch(step, rank // 2), folder)


def run_all(rank: int, kinds: list[str], folder: str) -> dict[str, Any]:
    """Each kind bare and observed; what it left behind, or how it failed."""
    out: dict[str, Any] = {}
    for kind in kinds:
        try:
            out[kind] = globals()[kind](rank, None), globals()[kind](rank, f"{folder}/{kind}")
        except Exception:
            out[kind] = traceback.format_exc()
        dist.barrier()
    return out
