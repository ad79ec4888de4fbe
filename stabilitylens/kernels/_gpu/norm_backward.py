r"""Backward of LayerNorm and RMSNorm for rows that fit into registers: x and dY are read once, dX is written once.

With g = w ⊙ dy, x̂ the normalised row and k = mean(g ⊙ x̂): dx = rstd (g - mean(g) - x̂ k), without mean(g) for
RMSNorm. A program owns a contiguous range of rows and adds up its part of dW and dB in fp32 registers, so
that the sum over programs is the same in every run. STATISTICS adds six numbers a program: of dY and of dX
Σ², largest magnitude, NaN and Inf.
"""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import (
    is_nonfinite,
    largest_of,
    load_row_vector,
    offsets,
    rounded,
    sum_max,
    sum_sum,
)
from stabilitylens.kernels._gpu.norm_forward import gain_of


@no_type_check
@triton.jit
def gradient_of_tile(x, dy, w, mean, rstd, within, D: tl.constexpr, CENTRED: tl.constexpr, HAS_W: tl.constexpr, ROUNDING: tl.constexpr):
    """x̂ and dx of a tile."""
    if CENTRED:
        xh = tl.where(within, (x - mean[:, None]) * rstd[:, None], 0.0)
    else:
        xh = x * rstd[:, None]
    g = dy
    if HAS_W:
        g = dy * gain_of(w, ROUNDING)
    if CENTRED:
        along, level = sum_sum(g * xh, g)
        dx = (g - (level / D)[:, None] - xh * (along / D)[:, None]) * rstd[:, None]
    else:
        along = tl.sum(g * xh, 1)
        dx = (g - xh * (along / D)[:, None]) * rstd[:, None]
    return xh, dx


@no_type_check
@triton.jit
def norm_backward(
    DY, X, W, MEAN, RSTD, DS, DX, DW, DB, STATS, M, per_program, dy_row, dy_col, x_row, x_col,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr, UNIT_DY: tl.constexpr,
    CENTRED: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr, ADD: tl.constexpr,
    STATISTICS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A range of ``per_program`` tiles a program; DS is the gradient of the sum that was normalised, as dense as DX."""
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    within = (columns < D)[None, :]
    w = 1.0
    if HAS_W:
        w = load_row_vector(W, columns, D, BLOCK)
    dw = tl.zeros([ROWS, BLOCK], tl.float32)
    db = tl.zeros([ROWS, BLOCK], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    largest = tl.zeros([ROWS], tl.float32)
    out_squares = tl.zeros([ROWS], tl.float32)
    out_largest = tl.zeros([ROWS], tl.float32)
    bad = tl.zeros([ROWS], tl.float32)
    out_bad = tl.zeros([ROWS], tl.float32)
    first = program * per_program
    last = tl.minimum(first + per_program, tl.cdiv(M, ROWS))
    for tile in tl.range(first, last, num_stages=STAGES):
        rows = tile * ROWS + tl.arange(0, ROWS)
        if D == BLOCK:
            inside = (rows < M)[:, None]
        else:
            inside = (rows < M)[:, None] & within
        dense = rows.to(tl.int64)[:, None] * D + columns[None, :]
        x = tl.load(X + offsets(rows, columns, x_row, x_col, ALIGN, UNIT), mask=inside, other=0.0).to(tl.float32)
        at = offsets(rows, columns, dy_row, dy_col, ALIGN, UNIT_DY)
        dy = tl.load(DY + at, mask=inside, other=0.0).to(tl.float32)
        mean = tl.zeros([ROWS], tl.float32)
        if CENTRED:
            mean = tl.load(MEAN + rows, mask=rows < M, other=0.0)
        rstd = tl.load(RSTD + rows, mask=rows < M, other=0.0)
        xh, dx = gradient_of_tile(x, dy, w, mean, rstd, within, D, CENTRED, HAS_W, ROUNDING)
        if HAS_W:
            dw += dy * xh
        if HAS_B:
            db += dy
        if ADD:
            dx += tl.load(DS + dense, mask=inside, other=0.0).to(tl.float32)
        tl.store(DX + dense, rounded(dx, DX.dtype.element_ty), mask=inside)
        if STATISTICS:
            dx = tl.where(inside, dx, 0.0)
            s, m = sum_max(dy * dy, tl.abs(dy))
            t, n = sum_max(dx * dx, tl.abs(dx))
            n = rounded(n, DX.dtype.element_ty).to(tl.float32)
            if tl.sum(is_nonfinite(s) + is_nonfinite(t) + is_nonfinite(n), 0) > 0:
                tl.debug_barrier()
                again = tl.load(DY + at, mask=inside, other=0.0).to(tl.float32)
                out = tl.load(DX + dense, mask=inside, other=0.0).to(tl.float32)
                bad += tl.sum(is_nonfinite(again), 1)
                out_bad += tl.sum(is_nonfinite(out), 1)
                m = tl.where(tl.sum((again != again).to(tl.float32), 1) > 0, float("nan"), m)
                n = tl.where(tl.sum((out != out).to(tl.float32), 1) > 0, float("nan"), n)
            squares += s
            out_squares += t
            largest = tl.where((m != m) | (m > largest), m, largest)
            out_largest = tl.where((n != n) | (n > out_largest), n, out_largest)
    place = program.to(tl.int64) * D + columns
    if HAS_W:
        tl.store(DW + place, tl.sum(dw, 0), mask=columns < D)
    if HAS_B:
        tl.store(DB + place, tl.sum(db, 0), mask=columns < D)
    if STATISTICS:
        out = STATS + program * 6
        tl.store(out, tl.sum(squares, 0))
        tl.store(out + 1, largest_of(largest))
        tl.store(out + 2, tl.sum(bad, 0))
        tl.store(out + 3, tl.sum(out_squares, 0))
        tl.store(out + 4, largest_of(out_largest))
        tl.store(out + 5, tl.sum(out_bad, 0))
