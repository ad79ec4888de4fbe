"""Forward of LayerNorm and RMSNorm for rows that don't fit into registers: the row is read twice, the second time from cache.

The variance is taken about the mean of the first block of a row, so that a large mean cancels nothing.
"""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import PLAIN, SCALE, is_nonfinite, rounded, store_moments
from stabilitylens.kernels._gpu.norm_forward import affine


@no_type_check
@triton.jit
def load_chunk(X, R, x_start, r_start, columns, x_col, r_col, D: tl.constexpr, UNIT: tl.constexpr, ADD: tl.constexpr):
    """A part of a row, with the residual added, as fp32; zero past its end."""
    inside = columns < D
    if UNIT:
        x = tl.load(X + x_start + columns, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            x += tl.load(R + r_start + columns, mask=inside, other=0.0).to(tl.float32)
    else:
        x = tl.load(X + x_start + columns.to(tl.int64) * x_col, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            x += tl.load(R + r_start + columns.to(tl.int64) * r_col, mask=inside, other=0.0).to(tl.float32)
    return x


@no_type_check
@triton.jit
def norm_forward_wide(
    X, R, S, W, B, Y, MEAN, RSTD, STATS, M, x_row, x_col, r_row, r_col, eps, N,
    D: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    CENTRED: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    ADD: tl.constexpr, ADD_ROUNDED: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    """One row a program; N is D, not known when compiled, so that the loops stay loops."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    x_start, r_start, dense = row * x_row * ALIGN, row * r_row * ALIGN, row * D
    shift = 0.0
    if CENTRED:
        shift = tl.sum(load_chunk(X, R, x_start, r_start, lanes, x_col, r_col, D, UNIT, ADD), 0) / BLOCK
    total = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    raw = tl.zeros([BLOCK], tl.float32)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + lanes
        x = load_chunk(X, R, x_start, r_start, columns, x_col, r_col, D, UNIT, ADD)
        if ADD:
            added = rounded(x, S.dtype.element_ty)
            tl.store(S + dense + columns, added, mask=columns < D)
            if ADD_ROUNDED:
                x = added.to(tl.float32)
        h = x
        if CENTRED:
            h = tl.where(columns < D, x - shift, 0.0)
        if CENTRED or STATISTICS:
            total += h
        squares += h * h
        if STATISTICS:
            largest = tl.maximum(largest, tl.abs(x))
            if CENTRED:
                raw += x * x
    power, sums = tl.sum(squares, 0), tl.sum(total, 0)
    mean = shift + sums / D
    variance = power / D
    if CENTRED:
        moved = mean - shift
        variance = tl.where(is_nonfinite(variance) > 0, variance, variance - moved * moved)
        variance = tl.where(variance < 0.0, 0.0, variance)
        tl.store(MEAN + row, mean)
    rstd = tl.rsqrt(variance + eps)
    tl.store(RSTD + row, rstd)
    out_total = tl.zeros([BLOCK], tl.float32)
    out_squares = tl.zeros([BLOCK], tl.float32)
    out_largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + lanes
        x = load_chunk(X, R, x_start, r_start, columns, x_col, r_col, D, UNIT, ADD)
        if ADD and ADD_ROUNDED:
            x = rounded(x, S.dtype.element_ty).to(tl.float32)
        if CENTRED:
            x = x - mean
        w, b = 1.0, 0.0
        if HAS_W:
            w = tl.load(W + columns, mask=columns < D, other=0.0).to(tl.float32)
        if HAS_B:
            b = tl.load(B + columns, mask=columns < D, other=0.0).to(tl.float32)
        y = affine(x * rstd, w, b, X.dtype.element_ty, Y.dtype.element_ty, ROUNDING, HAS_W, HAS_B)
        tl.store(Y + dense + columns, rounded(y, Y.dtype.element_ty), mask=columns < D)
        if STATISTICS:
            y = tl.where(columns < D, y, 0.0)
            out_total += y
            out_squares += y * y
            out_largest = tl.maximum(out_largest, tl.abs(y))
    if STATISTICS:
        if not CENTRED:
            raw = squares
        top, out_top = tl.max(largest, 0), rounded(tl.max(out_largest, 0), Y.dtype.element_ty).to(tl.float32)
        ssq, out_ssq = tl.sum(raw, 0), tl.sum(out_squares, 0)
        plain = sums + shift * D
        total_out = tl.sum(out_total, 0)
        large, out_large, bad, out_bad = 0.0, 0.0, 0.0, 0.0
        # also NaN fails a comparison
        if not (ssq <= PLAIN and out_ssq <= PLAIN and is_nonfinite(out_top) == 0):
            tl.debug_barrier()
            counts = tl.zeros([BLOCK], tl.float32)
            nans = tl.zeros([BLOCK], tl.float32)
            out_counts = tl.zeros([BLOCK], tl.float32)
            out_nans = tl.zeros([BLOCK], tl.float32)
            scaled = tl.zeros([BLOCK], tl.float32)
            out_scaled = tl.zeros([BLOCK], tl.float32)
            again = tl.zeros([BLOCK], tl.float32)
            power_again = tl.zeros([BLOCK], tl.float32)
            for start in range(0, N, BLOCK):
                columns = start + lanes
                if ADD:
                    x = tl.load(S + dense + columns, mask=columns < D, other=0.0).to(tl.float32)
                else:
                    x = load_chunk(X, R, x_start, r_start, columns, x_col, r_col, D, UNIT, ADD)
                y = tl.load(Y + dense + columns, mask=columns < D, other=0.0).to(tl.float32)
                counts += is_nonfinite(x)
                nans += (x != x).to(tl.float32)
                out_counts += is_nonfinite(y)
                out_nans += (y != y).to(tl.float32)
                scaled += (x * SCALE) * (x * SCALE)
                out_scaled += (y * SCALE) * (y * SCALE)
                again += x
                power_again += x * x
            bad, out_bad = tl.sum(counts, 0), tl.sum(out_counts, 0)
            plain, ssq = tl.sum(again, 0), tl.sum(power_again, 0)
            if bad == 0 and not (ssq <= PLAIN):
                large, ssq = tl.sum(scaled, 0), 0.0
            if out_bad == 0 and not (out_ssq <= PLAIN):
                out_large, out_ssq = tl.sum(out_scaled, 0), 0.0
            top = tl.where(tl.sum(nans, 0) > 0, float("nan"), top)
            out_top = tl.where(tl.sum(out_nans, 0) > 0, float("nan"), out_top)
        store_moments(STATS + row * 10, plain, ssq, large, top, bad)
        store_moments(STATS + row * 10 + 5, total_out, out_ssq, out_large, out_top, out_bad)
