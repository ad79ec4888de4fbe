"""Launches of the norm kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stabilitylens.errors import BadInput
from stabilitylens.kernels._gpu import shapes
from stabilitylens.kernels._gpu.norm_backward import norm_backward
from stabilitylens.kernels._gpu.norm_backward_wide import norm_backward_columns, norm_backward_rows
from stabilitylens.kernels._gpu.norm_forward import norm_forward
from stabilitylens.kernels._gpu.norm_forward_wide import norm_forward_wide
from stabilitylens.kernels._gpu.norm_observed import norm_observed

#: numbers a tile that the forward writes, and a program that the backward writes
FORWARD_FIELDS, BACKWARD_FIELDS = 10, 6
#: multiply by w in fp32, round, add a bias
BEFORE_BIAS = 3
ROUNDINGS = {"fp32": 0, "llama": 1, "gemma": 2}


@dataclass(frozen=True)
class Mode:
    """Which norm: LayerNorm where centred, else RMSNorm in a rounding mode; ``add_rounded``: of the rounded sum."""

    centred: bool
    rounding: int = 0
    add_rounded: bool = True

    def rounding_with(self, bias: Tensor | None) -> int:
        """RMSNorm that multiplies in fp32 rounds once more before a bias; LayerNorm does not."""
        return BEFORE_BIAS if bias is not None and not self.centred and self.rounding == 0 else self.rounding

    def dtype(self, x: Tensor, weight: Tensor | None) -> torch.dtype:
        """Of the output: Llama's product of x̂ and w follows PyTorch's promotion, all others that of the input."""
        return torch.promote_types(x.dtype, weight.dtype) if self.rounding == 1 and weight is not None else x.dtype


@dataclass(frozen=True)
class Forward:
    """Output, the sum that was normalised (empty where nothing was added), mean and 1/std of each row, statistics."""

    y: Tensor
    total: Tensor
    mean: Tensor
    rstd: Tensor
    statistics: Tensor | None


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, mode: Mode, statistics: bool
) -> Forward:
    """Normalise the last axis of x, or of x + residual."""
    if residual is not None and residual.shape != x.shape:
        raise BadInput(f"a residual of shape {tuple(residual.shape)} can't be added to x of shape {tuple(x.shape)}; expand it")
    m = shapes.matrix(x)
    r = m if residual is None else shapes.matrix(residual)
    rows, d = m.shape
    weight, bias = shapes.vector_or_none(weight, d), shapes.vector_or_none(bias, d)
    y = torch.empty(x.shape, dtype=mode.dtype(x, weight), device=x.device)
    total = torch.empty(x.shape if residual is not None else 0, dtype=x.dtype, device=x.device)
    mean = torch.empty(rows if mode.centred else 0, dtype=torch.float32, device=x.device)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    tile = shapes.tile(d, "forward", shapes.has_clusters(x))
    tiles = -(-rows // tile.rows)
    steps = shapes.steps(x, tiles * tile.clusters) if statistics and not tile.wide else 1
    programs = -(-tiles // steps)
    found = torch.empty(programs, FORWARD_FIELDS, dtype=torch.float32, device=x.device) if statistics else None
    if rows:
        unit = m.stride(1) == 1 and r.stride(1) == 1
        align = shapes.alignment(m, r) if unit else 1
        given = (m, r, total, x if weight is None else weight, x if bias is None else bias, y, mean, rstd)
        sizes = (m.stride(0) // align, m.stride(1), r.stride(0) // align, r.stride(1), eps)
        flags = {
            "D": d, "BLOCK": tile.block, "ALIGN": align, "UNIT": unit, "CENTRED": mode.centred, "ROUNDING": mode.rounding_with(bias),
            "HAS_W": weight is not None, "HAS_B": bias is not None, "ADD": residual is not None, "ADD_ROUNDED": mode.add_rounded,
        }  # fmt: skip
        if tile.wide:
            norm_forward_wide[(rows,)](*given, y if found is None else found, rows, *sizes, d, **flags, STATISTICS=statistics, **tile.options)
        elif found is None:
            norm_forward[(tiles,)](*given, rows, *sizes, **flags, ROWS=tile.rows, **tile.options)
        else:
            norm_observed[(programs,)](*given, found, rows, steps, *sizes, **flags, ROWS=tile.rows, **shapes.threads(tile.warps), CLUSTERS=tile.clusters, **tile.options)
    return Forward(y, total, mean, rstd, found)


@dataclass(frozen=True)
class Backward:
    """Gradients, and what was asked for of statistics."""

    dx: Tensor
    dw: Tensor | None
    db: Tensor | None
    statistics: Tensor | None


def backward(
    dy: Tensor, d_total: Tensor | None, x: Tensor, weight: Tensor | None, has_bias: bool, mean: Tensor, rstd: Tensor,
    mode: Mode, statistics: bool,
) -> Backward:  # fmt: skip
    """Gradients of :func:`forward`; x is what was normalised, ``d_total`` the gradient of the sum where one was returned."""
    m, g = shapes.matrix(x), shapes.matrix(dy)
    rows, d = m.shape
    weight = shapes.vector_or_none(weight, d)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tile = shapes.tile(d, "backward", shapes.has_clusters(x))
    tiles = -(-rows // tile.rows)
    count = shapes.programs(x, tiles)
    dw, db = (torch.zeros(count, d, dtype=torch.float32, device=x.device) if wanted else None for wanted in (weight is not None, has_bias))
    lines = rows if tile.wide else count
    found = torch.zeros(lines, BACKWARD_FIELDS, dtype=torch.float32, device=x.device) if statistics else None
    if rows:
        unit, unit_dy = m.stride(1) == 1, g.stride(1) == 1
        align = shapes.alignment(m, g) if unit and unit_dy else 1
        strides = (g.stride(0) // align, g.stride(1), m.stride(0) // align, m.stride(1))
        w, s = x if weight is None else weight, dx if d_total is None else shapes.matrix(d_total).contiguous()
        flags = {
            "D": d, "BLOCK": tile.block, "ALIGN": align, "UNIT": unit, "UNIT_DY": unit_dy, "CENTRED": mode.centred,
            "HAS_W": weight is not None,
        }  # fmt: skip
        more = {"ROUNDING": mode.rounding, "ADD": d_total is not None, "STATISTICS": statistics}
        out = dx if found is None else found
        if tile.wide:
            norm_backward_rows[(rows,)](g, m, w, mean, rstd, s, dx, out, *strides, d, **flags, **more, **tile.options)
            _columns(g, m, mean, rstd, dw, db, count, strides, flags)
        else:
            norm_backward[(count,)](
                g, m, w, mean, rstd, s, dx, dx if dw is None else dw, dx if db is None else db, out, rows, -(-tiles // count),
                *strides, **flags, **more, HAS_B=has_bias, ROWS=tile.rows, STAGES=2 if x.is_cuda else 1, **tile.options, **shapes.registers(statistics),
            )  # fmt: skip
    return Backward(dx, None if dw is None else dw.sum(0), None if db is None else db.sum(0), found)


def _columns(g: Tensor, m: Tensor, mean: Tensor, rstd: Tensor, dw: Tensor | None, db: Tensor | None, count: int, strides: tuple[int, ...], flags: dict) -> None:
    """Parts of dW and dB of rows that don't fit into registers."""
    parts = dw if dw is not None else db
    if parts is None:
        return
    block, rows = 1024, m.shape[0]
    flags = {**flags, "BLOCK": block, "HAS_B": db is not None}
    grid = (-(-m.shape[1] // block), count)
    norm_backward_columns[grid](
        g, m, mean, rstd, parts, parts if db is None else db, rows, -(-rows // count), *strides, **flags, num_warps=4, enable_fp_fusion=True
    )
