"""DyT and Derf, forward and backward: one read and one write, no reduction over a row but for the statistics.

The statistics are the five numbers of an input and the four of an output, as in ``norm_forward``; backward
the six of ``norm_backward``.
"""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import (
    INTERPRETED,
    is_nonfinite,
    largest_of,
    load_row_vector,
    offsets,
    rounded,
    sum_max,
    sum_sum_max,
)


@no_type_check
@triton.jit
def tanh(x, FAST: tl.constexpr):
    """By e^(-2|x|), and by its series where that would cancel; FAST by the hardware."""
    if FAST and not INTERPRETED:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        a = tl.abs(x)
        e = tl.exp(-2.0 * a)
        large = (1.0 - e) / (1.0 + e)
        s = x * x
        small = a * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.05396825 + s * 0.02186949))))
        y = tl.where(a < 0.25, small, large)
        return tl.where(x < 0, -y, y)


@no_type_check
@triton.jit
def squashed(h, ERF: tl.constexpr, FAST: tl.constexpr):
    """f(h)."""
    if ERF:
        if FAST:
            return tanh(h * (1.1297 + 0.0998 * h * h), FAST)
        else:
            return tl.math.erf(h)
    else:
        return tanh(h, FAST)


@no_type_check
@triton.jit
def squash_forward(
    X, ALPHA, SHIFT, W, B, Y, STATS, M, x_row, x_col,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    ERF: tl.constexpr, FAST: tl.constexpr, HAS_S: tl.constexpr, HAS_B: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    """A tile of ROWS rows and BLOCK columns a program."""
    tile, part = tl.program_id(0), tl.program_id(1)
    rows = tile * ROWS + tl.arange(0, ROWS)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (columns < D)[None, :]
    x = tl.load(X + offsets(rows, columns, x_row, x_col, ALIGN, UNIT), mask=inside, other=0.0).to(tl.float32)
    h = x * tl.load(ALPHA).to(tl.float32)
    if HAS_S:
        h += tl.load(SHIFT).to(tl.float32)
    y = squashed(h, ERF, FAST) * load_row_vector(W, columns, D, 0)
    if HAS_B:
        y += load_row_vector(B, columns, D, 0)
    out = rounded(y, Y.dtype.element_ty)
    tl.store(Y + rows.to(tl.int64)[:, None] * D + columns[None, :], out, mask=inside)
    if STATISTICS:
        y = tl.where(inside, y, 0.0)
        raw, total, largest = sum_sum_max(x * x, x, tl.abs(x))
        out_squares, out_total, out_largest = sum_sum_max(y * y, y, tl.abs(y))
        out_largest = rounded(out_largest, Y.dtype.element_ty).to(tl.float32)
        bad = tl.zeros([ROWS], tl.float32)
        out_bad = tl.zeros([ROWS], tl.float32)
        scale = 1.0
        if tl.sum(is_nonfinite(raw) + is_nonfinite(out_squares) + is_nonfinite(out_largest), 0) > 0:
            bad = tl.sum(is_nonfinite(x), 1)
            stored = tl.where(inside, out.to(tl.float32), 0.0)
            out_bad = tl.sum(is_nonfinite(stored), 1)
            top = tl.max(tl.where(bad > 0, 0.0, largest), 0)
            if top > 1e18:
                scale = top
                raw = tl.sum((x / top) * (x / top), 1)
            largest = tl.where(tl.sum((x != x).to(tl.float32), 1) > 0, float("nan"), largest)
            out_largest = tl.where(tl.sum((stored != stored).to(tl.float32), 1) > 0, float("nan"), out_largest)
        place = STATS + (tile.to(tl.int64) * tl.num_programs(1) + part) * 9
        tl.store(place, tl.sum(total, 0))
        tl.store(place + 1, tl.sum(raw, 0))
        tl.store(place + 2, scale)
        tl.store(place + 3, largest_of(largest))
        tl.store(place + 4, tl.sum(bad, 0))
        tl.store(place + 5, tl.sum(out_total, 0))
        tl.store(place + 6, tl.sum(out_squares, 0))
        tl.store(place + 7, largest_of(out_largest))
        tl.store(place + 8, tl.sum(out_bad, 0))


@no_type_check
@triton.jit
def squash_backward(
    DY, X, ALPHA, SHIFT, W, DX, DW, DB, DA, STATS, M, per_program, dy_row, dy_col, x_row, x_col,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr, UNIT_DY: tl.constexpr,
    ERF: tl.constexpr, FAST: tl.constexpr, HAS_S: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    """A block of columns over a contiguous range of tiles: dX, and its part of dW, dB, dα and ds."""
    program, part = tl.program_id(0), tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    alpha = tl.load(ALPHA).to(tl.float32)
    shift = 0.0
    if HAS_S:
        shift = tl.load(SHIFT).to(tl.float32)
    w = load_row_vector(W, columns, D, 0)
    dw = tl.zeros([ROWS, BLOCK], tl.float32)
    db = tl.zeros([ROWS, BLOCK], tl.float32)
    da = tl.zeros([ROWS, BLOCK], tl.float32)
    ds = tl.zeros([ROWS, BLOCK], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    largest = tl.zeros([ROWS], tl.float32)
    bad = tl.zeros([ROWS], tl.float32)
    out_squares = tl.zeros([ROWS], tl.float32)
    out_largest = tl.zeros([ROWS], tl.float32)
    out_bad = tl.zeros([ROWS], tl.float32)
    first = program * per_program
    for tile in range(first, tl.minimum(first + per_program, tl.cdiv(M, ROWS))):
        rows = tile * ROWS + tl.arange(0, ROWS)
        inside = (rows < M)[:, None] & (columns < D)[None, :]
        x = tl.load(X + offsets(rows, columns, x_row, x_col, ALIGN, UNIT), mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(DY + offsets(rows, columns, dy_row, dy_col, ALIGN, UNIT_DY), mask=inside, other=0.0).to(tl.float32)
        h = alpha * x + shift
        f = squashed(h, ERF, FAST)
        if ERF:
            slope = 1.1283791670955126 * tl.exp(-h * h)
        else:
            slope = 1.0 - f * f
        dh = dy * w * slope
        dx = dh * alpha
        dw += dy * f
        db += dy
        da += dh * x
        ds += dh
        out = rounded(dx, DX.dtype.element_ty)
        tl.store(DX + rows.to(tl.int64)[:, None] * D + columns[None, :], out, mask=inside)
        if STATISTICS:
            s, m = sum_max(dy * dy, tl.abs(dy))
            t, n = sum_max(dx * dx, tl.abs(dx))
            n = rounded(n, DX.dtype.element_ty).to(tl.float32)
            if tl.sum(is_nonfinite(s) + is_nonfinite(t) + is_nonfinite(n), 0) > 0:
                stored = out.to(tl.float32)
                bad += tl.sum(is_nonfinite(dy), 1)
                out_bad += tl.sum(is_nonfinite(stored), 1)
                m = tl.where(tl.sum((dy != dy).to(tl.float32), 1) > 0, float("nan"), m)
                n = tl.where(tl.sum((stored != stored).to(tl.float32), 1) > 0, float("nan"), n)
            squares += s
            out_squares += t
            largest = tl.where((m != m) | (m > largest), m, largest)
            out_largest = tl.where((n != n) | (n > out_largest), n, out_largest)
    place = program.to(tl.int64) * D + columns
    tl.store(DW + place, tl.sum(dw, 0), mask=columns < D)
    tl.store(DB + place, tl.sum(db, 0), mask=columns < D)
    line = program * tl.num_programs(1) + part
    tl.store(DA + line * 2, tl.sum(tl.sum(da, 1), 0))
    tl.store(DA + line * 2 + 1, tl.sum(tl.sum(ds, 1), 0))
    if STATISTICS:
        place = STATS + line * 6
        tl.store(place, tl.sum(squares, 0))
        tl.store(place + 1, largest_of(largest))
        tl.store(place + 2, tl.sum(bad, 0))
        tl.store(place + 3, tl.sum(out_squares, 0))
        tl.store(place + 4, largest_of(out_largest))
        tl.store(place + 5, tl.sum(out_bad, 0))
