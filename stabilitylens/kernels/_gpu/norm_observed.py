"""The forward of LayerNorm and RMSNorm with Moments of what goes in and what comes out.

A program normalises several tiles, so that a thread's sums cross threads once. It writes five numbers each of input and
output: Σ, Σ², that of rows whose squares would overflow as Σ(x/2^80)², the largest magnitude, NaN and Inf. Its tiles are
read again only where Σ² shows that something is huge or not finite, or where the last tile has rows that there are not. Of an
output in fp32, or on AMD's GPUs, the sums are of what is rounded last.
"""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import (
    PLAIN,
    four_sums,
    is_nonfinite,
    offsets,
    squares_or_scaled,
    store_moments,
)
from stabilitylens.kernels._gpu._threads import (
    add_largest,
    add_sums,
    add_sums_and_squares,
    by_thread,
    largest_of_all,
    no_largest,
    no_sums,
    sums_of_thread,
)
from stabilitylens.kernels._gpu.norm_forward import load_tile, normalise_tile


@no_type_check
@triton.jit
def moments_again(
    X, place, columns, first, last, M, row, col,
    D: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Of tiles that were found to hold NaN, Inf or huge numbers."""
    total, squares, scaled, largest, nans, bad = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for tile in range(first, last):
        rows = tile * ROWS + tl.arange(0, ROWS)
        inside = (rows < M)[:, None] & (columns < D)[None, :]
        x = tl.load(X + offsets(rows, columns, row, col, ALIGN, UNIT), mask=inside, other=0.0).to(tl.float32)
        s, t, n = squares_or_scaled(x)
        total += tl.sum(tl.sum(x, 1), 0)
        squares += tl.sum(s, 0)
        scaled += tl.sum(t, 0)
        bad += tl.sum(n, 0)
        nans += tl.sum(tl.sum((x != x).to(tl.float32), 1), 0)
        largest = tl.maximum(largest, tl.max(tl.max(tl.abs(x), 1), 0))
    store_moments(place, total, squares, scaled, tl.where(nans > 0, float("nan"), largest), bad)


@no_type_check
@triton.jit
def observe_tiles(
    first, steps, place, X, R, S, W, B, Y, MEAN, RSTD, M, x_row, x_col, r_row, r_col, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    CENTRED: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    ADD: tl.constexpr, ADD_ROUNDED: tl.constexpr, THREADS: tl.constexpr, CLUSTERS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Normalise tiles from ``first`` on and write what was found at ``place``."""
    V: tl.constexpr = 128 // X.dtype.element_ty.primitive_bitwidth
    ALL: tl.constexpr = THREADS * CLUSTERS
    EACH: tl.constexpr = ROWS * BLOCK // ALL
    last = tl.minimum(first + steps, tl.cdiv(M, ROWS))
    power = tl.zeros([ROWS], tl.float32)
    row_total = tl.zeros([ROWS], tl.float32)
    sums, squares = no_sums(X.dtype.element_ty, ALL, EACH, PAIRS)
    out_sums, out_squares = no_sums(Y.dtype.element_ty, ALL, EACH, PAIRS)
    largest = no_largest(X.dtype.element_ty, ALL, PAIRS)
    out_largest = no_largest(Y.dtype.element_ty, ALL, PAIRS)
    for tile in range(first, last):
        read, x = load_tile(tile, X, R, S, M, x_row, x_col, r_row, r_col, D, BLOCK, ROWS, ALIGN, UNIT, ADD, ADD_ROUNDED)
        read = by_thread(read, THREADS, CLUSTERS, V)
        largest = add_largest(read, largest)
        if not CENTRED:
            sums = add_sums(read, by_thread(x, THREADS, CLUSTERS, V), sums)
        out, z, row_sum, row_power = normalise_tile(
            tile, x, None, None, W, B, Y, MEAN, RSTD, M, eps, X.dtype.element_ty, D, BLOCK, ROWS, CENTRED, ROUNDING, HAS_W, HAS_B
        )  # fmt: skip
        power += row_power
        row_total += row_sum
        out = by_thread(out, THREADS, CLUSTERS, V)
        out_largest = add_largest(out, out_largest)
        out_sums, out_squares = add_sums_and_squares(out, by_thread(z, THREADS, CLUSTERS, V), out_sums, out_squares)
    total, _, out_total, out_square = four_sums(*sums_of_thread(sums, squares), *sums_of_thread(out_sums, out_squares))
    largest, out_largest = largest_of_all(largest, X.dtype.element_ty), largest_of_all(out_largest, Y.dtype.element_ty)
    if CENTRED:
        total = tl.sum(row_total, 0)
    square = tl.sum(power, 0)
    store_moments(place, total, square, 0.0, largest, 0.0)
    store_moments(place + 5, out_total, out_square, 0.0, out_largest, 0.0)
    # also NaN fails a comparison; of rows that there are not biases were added up
    if not (square <= PLAIN and out_square <= PLAIN and is_nonfinite(out_largest) == 0 and (last * ROWS <= M or not HAS_B)):
        tl.debug_barrier()
        columns = tl.arange(0, BLOCK)
        if ADD:
            moments_again(S, place, columns, first, last, M, D, 1, D, ROWS, 1, True)
        else:
            moments_again(X, place, columns, first, last, M, x_row, x_col, D, ROWS, ALIGN, UNIT)
        moments_again(Y, place + 5, columns, first, last, M, D, 1, D, ROWS, 1, True)


@no_type_check
@triton.jit
def norm_observed(
    X, R, S, W, B, Y, MEAN, RSTD, STATS, M, steps, x_row, x_col, r_row, r_col, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    CENTRED: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    ADD: tl.constexpr, ADD_ROUNDED: tl.constexpr, THREADS: tl.constexpr, CLUSTERS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """``steps`` tiles a program."""
    program = tl.program_id(0)
    observe_tiles(
        program * steps, steps, STATS + program.to(tl.int64) * 10, X, R, S, W, B, Y, MEAN, RSTD, M, x_row, x_col, r_row, r_col, eps,
        D, BLOCK, ROWS, ALIGN, UNIT, CENTRED, ROUNDING, HAS_W, HAS_B, ADD, ADD_ROUNDED, THREADS, CLUSTERS, PAIRS,
    )  # fmt: skip


@no_type_check
@triton.jit
def pair_observed(
    Q, WQ, YQ, RSTD_Q, STATS_Q, MQ, q_row, q_col, K, WK, YK, RSTD_K, STATS_K, MK, k_row, k_col, eps, q_programs, q_steps, k_steps,
    DQ: tl.constexpr, BLOCK_Q: tl.constexpr, ROWS_Q: tl.constexpr, ALIGN_Q: tl.constexpr, UNIT_Q: tl.constexpr,
    DK: tl.constexpr, BLOCK_K: tl.constexpr, ROWS_K: tl.constexpr, ALIGN_K: tl.constexpr, UNIT_K: tl.constexpr,
    ROUNDING: tl.constexpr, THREADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """RMSNorm of queries by the first programs and of keys by the others."""
    program = tl.program_id(0)
    if program < q_programs:
        observe_tiles(
            program * q_steps, q_steps, STATS_Q + program.to(tl.int64) * 10, Q, Q, Q, WQ, WQ, YQ, RSTD_Q, RSTD_Q, MQ, q_row, q_col, 0, 0, eps,
            DQ, BLOCK_Q, ROWS_Q, ALIGN_Q, UNIT_Q, False, ROUNDING, True, False, False, False, THREADS, 1, PAIRS,
        )  # fmt: skip
    else:
        program -= q_programs
        observe_tiles(
            program * k_steps, k_steps, STATS_K + program.to(tl.int64) * 10, K, K, K, WK, WK, YK, RSTD_K, RSTD_K, MK, k_row, k_col, 0, 0, eps,
            DK, BLOCK_K, ROWS_K, ALIGN_K, UNIT_K, False, ROUNDING, True, False, False, False, THREADS, 1, PAIRS,
        )  # fmt: skip
