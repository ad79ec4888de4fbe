"""Forward of LayerNorm and RMSNorm for rows that fit into registers: one read, one write.

A program normalises a tile of ROWS rows. STATISTICS 1 adds five numbers a tile about the input: Σ, Σ² and
its scale, largest magnitude, NaN and Inf; 2 adds Σ, Σ², largest magnitude, NaN and Inf of the output, its sums
before rounding. NaN and Inf are counted only where a sum is not finite, in a branch that reads the tile again.
"""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import (
    is_nonfinite,
    largest_of,
    load_row_vector,
    moments_of_two,
    offsets,
    rounded,
    sum_max,
    sum_sum_max,
)


@no_type_check
@triton.jit
def gain_of(w, ROUNDING: tl.constexpr):
    """What a weight multiplies by: itself, or in Gemma's mode one more."""
    if ROUNDING == 2:
        return 1.0 + w
    else:
        return w


@no_type_check
@triton.jit
def affine(h, w, b, in_dtype: tl.constexpr, out_dtype: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """Gain and bias in fp32, in a rounding mode: 0 rounds once at the end, 1 as Llama, 2 as Gemma."""
    if ROUNDING == 1:
        h = rounded(h, in_dtype).to(tl.float32)
    if HAS_W:
        h = h * gain_of(w, ROUNDING)
    if HAS_B:
        if ROUNDING != 0:
            h = rounded(h, out_dtype).to(tl.float32)
        h = h + b
    return h


@no_type_check
@triton.jit
def normalise_tile(
    tile, X, R, S, W, B, Y, MEAN, RSTD, STATS, M, x_row, x_col, r_row, r_col, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    CENTRED: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    ADD: tl.constexpr, ADD_ROUNDED: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    """Normalise tile number ``tile`` of a matrix of M rows."""
    rows = tile * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None]
    if D != BLOCK:
        inside = inside & (columns < D)[None, :]
    at = offsets(rows, columns, x_row, x_col, ALIGN, UNIT)
    dense = rows.to(tl.int64)[:, None] * D + columns[None, :]
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(R + offsets(rows, columns, r_row, r_col, ALIGN, UNIT), mask=inside, other=0.0).to(tl.float32)
        added = rounded(x, S.dtype.element_ty)
        tl.store(S + dense, added, mask=inside)
        if ADD_ROUNDED:
            x = added.to(tl.float32)
    w, b = 1.0, 0.0
    if HAS_W:
        w = load_row_vector(W, columns, D, BLOCK)
    if HAS_B:
        b = load_row_vector(B, columns, D, BLOCK)
    if CENTRED:
        if STATISTICS:
            total, largest = sum_max(x, tl.abs(x))
        else:
            total = tl.sum(x, 1)
        mean = total / D
        h = x - mean[:, None]
        if D != BLOCK:
            h = tl.where((columns < D)[None, :], h, 0.0)
        squares = tl.sum(h * h, 1)
        raw = squares + mean * mean * D
        tl.store(MEAN + rows, mean, mask=rows < M)
    else:
        if STATISTICS == 2 and not HAS_B:
            z = x * gain_of(w, ROUNDING)
            raw, total, largest, out_squares, out_total, out_largest = moments_of_two(x, z)
        elif STATISTICS:
            raw, total, largest = sum_sum_max(x * x, x, tl.abs(x))
        else:
            raw = tl.sum(x * x, 1)
        squares = raw
        h = x
    rstd = tl.rsqrt(squares / D + eps)
    tl.store(RSTD + rows, rstd, mask=rows < M)
    y = affine(h * rstd[:, None], w, b, X.dtype.element_ty, Y.dtype.element_ty, ROUNDING, HAS_W, HAS_B)
    tl.store(Y + dense, rounded(y, Y.dtype.element_ty), mask=inside)
    if STATISTICS:
        raw = tl.where(rows < M, raw, 0.0)
        odd = is_nonfinite(raw)
        if STATISTICS == 2:
            if HAS_B or CENTRED:
                z = tl.where(inside, y, 0.0)
                out_squares, out_total, out_largest = sum_sum_max(z * z, z, tl.abs(z))
            else:
                out_squares, out_total, out_largest = out_squares * rstd * rstd, out_total * rstd, out_largest * rstd
            out_largest = rounded(out_largest, Y.dtype.element_ty).to(tl.float32)
            odd += is_nonfinite(out_squares) + is_nonfinite(out_largest)
        bad = tl.zeros([ROWS], tl.float32)
        out_bad = tl.zeros([ROWS], tl.float32)
        scale = 1.0
        if tl.sum(odd, 0) > 0:
            tl.debug_barrier()
            if ADD:
                again = tl.load(S + dense, mask=inside, other=0.0).to(tl.float32)
            else:
                again = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
            bad = tl.sum(is_nonfinite(again), 1)
            total, raw = tl.sum(again, 1), tl.sum(again * again, 1)
            top = tl.max(tl.where(bad > 0, 0.0, largest), 0)
            largest = tl.where(tl.sum((again != again).to(tl.float32), 1) > 0, float("nan"), largest)
            if top > 1e18:
                scale = top
                raw = tl.sum((again / top) * (again / top), 1)
            if STATISTICS == 2:
                out = tl.load(Y + dense, mask=inside, other=0.0).to(tl.float32)
                out_bad = tl.sum(is_nonfinite(out), 1)
                out_total, out_squares, out_largest = tl.sum(out, 1), tl.sum(out * out, 1), tl.max(tl.abs(out), 1)
                out_largest = tl.where(tl.sum((out != out).to(tl.float32), 1) > 0, float("nan"), out_largest)
        place = STATS + tile.to(tl.int64) * 9
        tl.store(place, tl.sum(total, 0))
        tl.store(place + 1, tl.sum(raw, 0))
        tl.store(place + 2, scale)
        tl.store(place + 3, largest_of(largest))
        tl.store(place + 4, tl.sum(bad, 0))
        if STATISTICS == 2:
            tl.store(place + 5, tl.sum(out_total, 0))
            tl.store(place + 6, tl.sum(out_squares, 0))
            tl.store(place + 7, largest_of(out_largest))
            tl.store(place + 8, tl.sum(out_bad, 0))


@no_type_check
@triton.jit
def norm_forward(
    X, R, S, W, B, Y, MEAN, RSTD, STATS, M, x_row, x_col, r_row, r_col, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    CENTRED: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    ADD: tl.constexpr, ADD_ROUNDED: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    """One tile a program."""
    normalise_tile(
        tl.program_id(0), X, R, S, W, B, Y, MEAN, RSTD, STATS, M, x_row, x_col, r_row, r_col, eps,
        D, BLOCK, ROWS, ALIGN, UNIT, CENTRED, ROUNDING, HAS_W, HAS_B, ADD, ADD_ROUNDED, STATISTICS,
    )  # fmt: skip


@no_type_check
@triton.jit
def pair_forward(
    Q, WQ, YQ, RSTD_Q, STATS_Q, MQ, q_row, q_col, K, WK, YK, RSTD_K, STATS_K, MK, k_row, k_col, eps, q_tiles,
    DQ: tl.constexpr, BLOCK_Q: tl.constexpr, ROWS_Q: tl.constexpr, ALIGN_Q: tl.constexpr, UNIT_Q: tl.constexpr,
    DK: tl.constexpr, BLOCK_K: tl.constexpr, ROWS_K: tl.constexpr, ALIGN_K: tl.constexpr, UNIT_K: tl.constexpr,
    ROUNDING: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    """RMSNorm of queries by the first programs and of keys by the others."""
    tile = tl.program_id(0)
    if tile < q_tiles:
        normalise_tile(
            tile, Q, Q, Q, WQ, WQ, YQ, RSTD_Q, RSTD_Q, STATS_Q, MQ, q_row, q_col, 0, 0, eps,
            DQ, BLOCK_Q, ROWS_Q, ALIGN_Q, UNIT_Q, False, ROUNDING, True, False, False, False, STATISTICS,
        )  # fmt: skip
    else:
        normalise_tile(
            tile - q_tiles, K, K, K, WK, WK, YK, RSTD_K, RSTD_K, STATS_K, MK, k_row, k_col, 0, 0, eps,
            DK, BLOCK_K, ROWS_K, ALIGN_K, UNIT_K, False, ROUNDING, True, False, False, False, STATISTICS,
        )  # fmt: skip
