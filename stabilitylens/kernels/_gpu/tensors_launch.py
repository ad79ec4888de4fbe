"""Launch of the many-tensor kernel: one for each dtype and alignment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from stabilitylens.kernels._gpu.tensors import tensor_chunks

#: elements of a chunk, and of what a program reads at a time
CHUNK, BLOCK = 1 << 16, 2048
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _dense(x: Tensor) -> Tensor:
    """Its elements in one stretch of memory, in whatever order."""
    return x if torch._debug_has_internal_overlap(x) == 0 and _fills_its_memory(x) else x.contiguous()


def _fills_its_memory(x: Tensor) -> bool:
    expected = 1
    for size, stride in sorted(((n, s) for n, s in zip(x.shape, x.stride(), strict=True) if n != 1), key=lambda p: p[1]):
        if stride != expected:
            return False
        expected *= size
    return True


def _chunks(tensors: Sequence[Tensor], dtype: torch.dtype, aligned: bool) -> tuple[Tensor, Tensor]:
    """Seven numbers a chunk, and the number of chunks of each tensor."""
    device = tensors[0].device
    numbers = [-(-t.numel() // CHUNK) for t in tensors]
    tensor_of = torch.repeat_interleave(torch.tensor(numbers))
    chunk_of = torch.cat([torch.arange(n) for n in numbers])
    addresses = torch.tensor([[t.data_ptr(), t.numel()] for t in tensors], dtype=torch.int64)
    table = torch.cat((addresses.T.reshape(-1), tensor_of, chunk_of)).to(device, non_blocking=True)
    n, c = len(tensors), len(tensor_of)
    out = torch.empty(c, 7, device=device)
    tensor_chunks[(c,)](
        table[:n], table[n : 2 * n], table[2 * n : 2 * n + c], table[2 * n + c :], out,
        CHUNK=CHUNK, BLOCK=BLOCK, DTYPE=_DTYPES[dtype], ALIGNED=aligned, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return out.double(), torch.tensor(numbers, device=device)


def many_moments(tensors: Sequence[Tensor]) -> Tensor:
    """All fields of ``Moments`` of each tensor, fp64, shape (tensor, field)."""
    device = tensors[0].device
    rows = torch.zeros(len(tensors), 6, dtype=torch.float64, device=device)
    rows[:, 0] = torch.tensor([float(t.numel()) for t in tensors], dtype=torch.float64)
    rows[:, 4] = -torch.inf
    buckets: dict[tuple[torch.dtype, bool], list[int]] = defaultdict(list)
    dense = [_dense(t) for t in tensors]
    for i, t in enumerate(dense):
        if t.numel():
            buckets[t.dtype, t.data_ptr() % 16 == 0].append(i)
    for (dtype, aligned), places in buckets.items():
        found, lengths = _chunks([dense[i] for i in places], dtype, aligned)
        found[:, 2] *= found[:, 3] ** 2
        found[:, 4] = torch.where(found[:, 6] > 0, torch.nan, found[:, 4])
        sums = torch.segment_reduce(found, "sum", lengths=lengths, axis=0)
        largest = torch.segment_reduce(found[:, 4].contiguous(), "max", lengths=lengths, axis=0)
        rows[places, 1:] = torch.stack((sums[:, 0], sums[:, 1], sums[:, 2], largest, sums[:, 5]), -1)
    return rows
