"""Backward of LayerNorm and RMSNorm for rows that don't fit into registers: dX by rows, then dW and dB by columns."""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import is_nonfinite, rounded
from stabilitylens.kernels._gpu.norm_forward import gain_of


@no_type_check
@triton.jit
def load_part(P, start, columns, col, D: tl.constexpr, UNIT: tl.constexpr):
    """A part of a row as fp32, zero past its end."""
    if UNIT:
        return tl.load(P + start + columns, mask=columns < D, other=0.0).to(tl.float32)
    else:
        return tl.load(P + start + columns.to(tl.int64) * col, mask=columns < D, other=0.0).to(tl.float32)


@no_type_check
@triton.jit
def norm_backward_rows(
    DY, X, W, MEAN, RSTD, DS, DX, STATS, dy_row, dy_col, x_row, x_col, N,
    D: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr, UNIT_DY: tl.constexpr,
    CENTRED: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, ADD: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    """dX of one row a program; the statistics are those of ``norm_backward``, a row; N is D, as forward."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    x_start, dy_start, dense = row * x_row * ALIGN, row * dy_row * ALIGN, row * D
    rstd = tl.load(RSTD + row)
    mean = 0.0
    if CENTRED:
        mean = tl.load(MEAN + row)
    along = tl.zeros([BLOCK], tl.float32)
    level = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + lanes
        dy = load_part(DY, dy_start, columns, dy_col, D, UNIT_DY)
        g = dy
        if HAS_W:
            g = dy * gain_of(tl.load(W + columns, mask=columns < D, other=0.0).to(tl.float32), ROUNDING)
        along += g * (load_part(X, x_start, columns, x_col, D, UNIT) - mean) * rstd
        if CENTRED:
            level += g
        if STATISTICS:
            squares += dy * dy
            largest = tl.maximum(largest, tl.abs(dy))
    k, g_mean = tl.sum(along, 0) / D, tl.sum(level, 0) / D
    out_squares = tl.zeros([BLOCK], tl.float32)
    out_largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + lanes
        g = load_part(DY, dy_start, columns, dy_col, D, UNIT_DY)
        if HAS_W:
            g = g * gain_of(tl.load(W + columns, mask=columns < D, other=0.0).to(tl.float32), ROUNDING)
        xh = (load_part(X, x_start, columns, x_col, D, UNIT) - mean) * rstd
        dx = (g - g_mean - xh * k) * rstd
        if ADD:
            dx += tl.load(DS + dense + columns, mask=columns < D, other=0.0).to(tl.float32)
        tl.store(DX + dense + columns, rounded(dx, DX.dtype.element_ty), mask=columns < D)
        if STATISTICS:
            dx = tl.where(columns < D, dx, 0.0)
            out_squares += dx * dx
            out_largest = tl.maximum(out_largest, tl.abs(dx))
    if STATISTICS:
        s, t = tl.sum(squares, 0), tl.sum(out_squares, 0)
        m, n = tl.max(largest, 0), rounded(tl.max(out_largest, 0), DX.dtype.element_ty).to(tl.float32)
        bad, out_bad = 0.0, 0.0
        if is_nonfinite(s) + is_nonfinite(t) + is_nonfinite(n) > 0:
            tl.debug_barrier()
            nans, out_nans = 0.0, 0.0
            for start in range(0, N, BLOCK):
                columns = start + lanes
                dy = load_part(DY, dy_start, columns, dy_col, D, UNIT_DY)
                out = tl.load(DX + dense + columns, mask=columns < D, other=0.0).to(tl.float32)
                bad += tl.sum(is_nonfinite(dy), 0)
                out_bad += tl.sum(is_nonfinite(out), 0)
                nans += tl.sum((dy != dy).to(tl.float32), 0)
                out_nans += tl.sum((out != out).to(tl.float32), 0)
            m, n = tl.where(nans > 0, float("nan"), m), tl.where(out_nans > 0, float("nan"), n)
        place = STATS + row * 6
        tl.store(place, s)
        tl.store(place + 1, m)
        tl.store(place + 2, bad)
        tl.store(place + 3, t)
        tl.store(place + 4, n)
        tl.store(place + 5, out_bad)


@no_type_check
@triton.jit
def norm_backward_columns(
    DY, X, MEAN, RSTD, DW, DB, M, per_program, dy_row, dy_col, x_row, x_col,
    D: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr, UNIT_DY: tl.constexpr,
    CENTRED: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
):  # fmt: skip
    """A block of columns over a contiguous range of rows: its part of dW and dB."""
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * per_program
    last = tl.minimum(first + per_program, M)
    dw = tl.zeros([BLOCK], tl.float32)
    db = tl.zeros([BLOCK], tl.float32)
    for r in range(first, last):
        row = tl.cast(r, tl.int64)
        dy = load_part(DY, row * dy_row * ALIGN, columns, dy_col, D, UNIT_DY)
        if HAS_W:
            x = load_part(X, row * x_row * ALIGN, columns, x_col, D, UNIT)
            if CENTRED:
                x = x - tl.load(MEAN + row)
            dw += dy * x * tl.load(RSTD + row)
        if HAS_B:
            db += dy
    place = tl.program_id(1).to(tl.int64) * D + columns
    if HAS_W:
        tl.store(DW + place, dw, mask=columns < D)
    if HAS_B:
        tl.store(DB + place, db, mask=columns < D)
