"""Launches of the DyT and Derf kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from stabilitylens.kernels._gpu import shapes
from stabilitylens.kernels._gpu.norm import BACKWARD_FIELDS, FORWARD_FIELDS
from stabilitylens.kernels._gpu.squash import squash_forward
from stabilitylens.kernels._gpu.squash_backward import squash_backward
from stabilitylens.kernels._gpu.squash_observed import squash_observed

#: columns of a tile, and elements of it: forward, and backward, which takes more registers, and more with statistics
COLUMNS, TILE, SMALL_TILE = 1024, 4096, 2048
WARPS = 4
#: a limit on registers where rows do not fill their tiles: left alone ptxas keeps to 96 there and spills two
RAGGED_REGISTERS = 128


def _tile(d: int, size: int) -> tuple[int, int]:
    block = min(COLUMNS, shapes.power_of_two(d))
    return block, size // block


def forward(
    x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor | None, erf: bool, fast: bool, statistics: bool
) -> tuple[Tensor, Tensor | None]:
    """Output, and what was asked for of statistics."""
    m = shapes.matrix(x)
    (rows, d), (block, tile_rows) = m.shape, _tile(m.shape[1], TILE)
    weight, bias = shapes.vector(weight, d), shapes.vector_or_none(bias, d)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tiles, parts = -(-rows // tile_rows), -(-d // block)
    steps = shapes.steps(x, tiles * parts) if statistics else 1
    grid = (-(-tiles // steps), parts)
    found = torch.empty(grid[0] * grid[1], FORWARD_FIELDS, dtype=torch.float32, device=x.device) if statistics else None
    if rows:
        unit = m.stride(1) == 1
        align = shapes.alignment(m) if unit else 1
        given = (m, alpha, alpha if shift is None else shift, weight, weight if bias is None else bias, y)
        sizes = (m.stride(0) // align, m.stride(1))
        flags = {
            "D": d, "BLOCK": block, "ROWS": tile_rows, "ALIGN": align, "UNIT": unit, "ERF": erf, "FAST": fast, "HAS_S": shift is not None,
            "HAS_B": bias is not None, "num_warps": WARPS, "enable_fp_fusion": True,
        }  # fmt: skip
        if found is None:
            squash_forward[grid](*given, rows, *sizes, **flags)
        else:
            squash_observed[grid](*given, found, rows, steps, *sizes, **flags, **shapes.threads(WARPS), **shapes.registers(d % block != 0, RAGGED_REGISTERS))
    return y, found


def backward(
    dy: Tensor, x: Tensor, alpha: Tensor, shift: Tensor | None, weight: Tensor, erf: bool, fast: bool, statistics: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """dX, dW and dB, (dα, ds), and what was asked for of statistics; parameters' gradients in fp32."""
    m, g = shapes.matrix(x), shapes.matrix(dy)
    (rows, d), (block, tile_rows) = m.shape, _tile(m.shape[1], COLUMNS if statistics else SMALL_TILE)
    weight = shapes.vector(weight, d)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tiles, parts = -(-rows // tile_rows), -(-d // block)
    count = shapes.programs(x, tiles)
    dw, db = (torch.zeros(count, d, dtype=torch.float32, device=x.device) for _ in range(2))
    scalars = torch.zeros(count * parts, 2, dtype=torch.float32, device=x.device)
    found = torch.zeros(count * parts, BACKWARD_FIELDS, dtype=torch.float32, device=x.device) if statistics else None
    if rows:
        unit, unit_dy = m.stride(1) == 1, g.stride(1) == 1
        align = shapes.alignment(m, g) if unit and unit_dy else 1
        squash_backward[(count, parts)](
            g, m, alpha, alpha if shift is None else shift, weight, dx, dw, db, scalars, dx if found is None else found,
            rows, -(-tiles // count), g.stride(0) // align, g.stride(1), m.stride(0) // align, m.stride(1),
            D=d, BLOCK=block, ROWS=tile_rows, ALIGN=align, UNIT=unit, UNIT_DY=unit_dy, ERF=erf, FAST=fast,
            HAS_S=shift is not None, STATISTICS=statistics, num_warps=WARPS, enable_fp_fusion=True,
        )  # fmt: skip
    return dx, dw.sum(0), db.sum(0), scalars.double().sum(0).float(), found
