"""The backward of DyT and Derf, with the six numbers of ``norm_backward`` where they are asked for."""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import is_nonfinite, largest_of, load_row_vector, offsets, rounded, sum_max
from stabilitylens.kernels._gpu.squash import squashed


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
    w = load_row_vector(W, columns, D, BLOCK)
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
