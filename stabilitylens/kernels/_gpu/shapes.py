"""Tiles, warps and clusters for a row length, and matrices out of tensors of any strides.

A thread holds 32 elements of a row forward and 16 backward: with more warps the statistics are bound by
instructions, with fewer the rows no longer fit into registers. Rows longer than that are spread over a
cluster on compute capability 9.0 and later, and read in blocks elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stabilitylens.errors import BadInput
from stabilitylens.kernels._choice import interpreted

#: longest row that one block of threads keeps in registers, forward and backward
FORWARD_ROW, BACKWARD_ROW = 16384, 4096
#: thread blocks in a cluster, at most
CLUSTER = 8
#: elements of a row that are read at a time where it does not fit
WIDE_BLOCK = 4096
#: registers a thread of the backward with statistics
BACKWARD_REGISTERS = 168
#: multiprocessors assumed in the interpreter, and programs a multiprocessor in the backward
INTERPRETED_PROCESSORS, PROGRAMS = 2, 2
#: of the forward with statistics: tiles a program, at most, and blocks of threads a multiprocessor that there are to be
STEPS, BUSY = 8, 24


@dataclass(frozen=True)
class Tile:
    """How rows are spread: BLOCK columns of ROWS rows a program, by warps of 32 threads and blocks of a cluster."""

    block: int
    rows: int
    warps: int
    clusters: int = 1
    wide: bool = False

    @property
    def options(self) -> dict[str, int | bool]:
        """Launch options; fusing products and sums is pinned, since Triton's default for it changes."""
        cluster = {"num_ctas": self.clusters} if self.clusters > 1 else {}
        return {"num_warps": self.warps, "enable_fp_fusion": True, **cluster}


def threads(warps: int) -> dict[str, int | bool]:
    """What kernels need to know to add up thread by thread; AMD's have 64 lanes a warp, and neither pairs nor PTX."""
    amd = torch.version.hip is not None
    return {"THREADS": warps * (64 if amd else 32), "PAIRS": not amd}


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def has_clusters(x: Tensor) -> bool:
    """Whether thread blocks can share a reduction."""
    return x.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(x.device)[0] >= 9


def tile(d: int, direction: str, clusters: bool) -> Tile:
    """The tile for rows of d elements; ``direction`` is ``forward`` or ``backward``."""
    block = power_of_two(d)
    each, longest = (32, FORWARD_ROW) if direction == "forward" else (16, BACKWARD_ROW)
    if block > longest * (CLUSTER if clusters else 1):
        return Tile(WIDE_BLOCK, 1, 8, wide=True)
    count = max(1, block // longest)
    rows = max(1, 128 * each // block) if block < 1024 else 1
    warps = min(16, max(1, rows * block // (32 * each * count)))
    return Tile(block, rows, warps, count)


def registers(wanted: bool, limit: int = BACKWARD_REGISTERS) -> dict[str, int]:
    """On CUDA, a limit for kernels with statistics; left alone ptxas may keep to fewer registers and spill a few."""
    return {"maxnreg": limit} if wanted and torch.version.hip is None and not interpreted() else {}


def matrix(x: Tensor) -> Tensor:
    """As (row, d) without a copy where the strides allow it."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def vector(parameter: Tensor, d: int) -> Tensor:
    """One number a feature, dense as the kernels read it.

    Raises:
        BadInput: there are more of them, or fewer.
    """
    if parameter.shape != (d,):
        raise BadInput(f"a parameter of shape {tuple(parameter.shape)} can't scale or shift rows of {d} elements; it must have shape ({d},)")
    return parameter.contiguous()


def vector_or_none(parameter: Tensor | None, d: int) -> Tensor | None:
    """The same of a parameter that there may not be."""
    return None if parameter is None else vector(parameter, d)


def alignment(*matrices: Tensor) -> int:
    """A power of two up to 16 that divides every row stride."""
    return math.gcd(16, *(m.stride(0) for m in matrices))


def processors(x: Tensor) -> int:
    """Multiprocessors of the device."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else INTERPRETED_PROCESSORS


def programs(x: Tensor, tiles: int) -> int:
    """How many programs share the rows of a backward: a number of the device, so that sums are the same in every run."""
    return max(1, min(tiles, processors(x) * PROGRAMS))


def steps(x: Tensor, blocks: int) -> int:
    """Tiles that a program of the forward with statistics takes: several where so many blocks of threads keep the device busy."""
    return max(1, min(STEPS, blocks // (processors(x) * BUSY)))
