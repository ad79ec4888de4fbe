"""The forward of DyT and Derf with the Moments of input and output that ``norm_observed`` writes."""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import PLAIN, four_sums, is_nonfinite, store_moments
from stabilitylens.kernels._gpu._threads import (
    add_largest,
    add_sums_and_squares,
    by_thread,
    largest_of_all,
    no_largest,
    no_sums,
    sums_of_thread,
)
from stabilitylens.kernels._gpu.norm_observed import moments_again
from stabilitylens.kernels._gpu.squash import constants, squash_tile


@no_type_check
@triton.jit
def squash_observed(
    X, ALPHA, SHIFT, W, B, Y, STATS, M, steps, x_row, x_col,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    ERF: tl.constexpr, FAST: tl.constexpr, HAS_S: tl.constexpr, HAS_B: tl.constexpr, THREADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """``steps`` tiles a program, all of the same columns."""
    V: tl.constexpr = 128 // X.dtype.element_ty.primitive_bitwidth
    EACH: tl.constexpr = ROWS * BLOCK // THREADS
    program, part = tl.program_id(0), tl.program_id(1)
    place = STATS + (program.to(tl.int64) * tl.num_programs(1) + part) * 10
    columns = part * BLOCK + tl.arange(0, BLOCK)
    first = program * steps
    last = tl.minimum(first + steps, tl.cdiv(M, ROWS))
    sums, squares = no_sums(X.dtype.element_ty, THREADS, EACH, PAIRS)
    out_sums, out_squares = no_sums(Y.dtype.element_ty, THREADS, EACH, PAIRS)
    largest = no_largest(X.dtype.element_ty, THREADS, PAIRS)
    out_largest = no_largest(Y.dtype.element_ty, THREADS, PAIRS)
    alpha, shift, w, b = constants(ALPHA, SHIFT, W, B, columns, D, BLOCK, HAS_S, HAS_B)
    for tile in range(first, last):
        read, out, y = squash_tile(tile, columns, X, alpha, shift, w, b, Y, M, x_row, x_col, D, BLOCK, ROWS, ALIGN, UNIT, ERF, FAST, HAS_S, HAS_B)
        read, out, y = by_thread(read, THREADS, 1, V), by_thread(out, THREADS, 1, V), by_thread(y, THREADS, 1, V)
        largest = add_largest(read, largest)
        out_largest = add_largest(out, out_largest)
        sums, squares = add_sums_and_squares(read, read.to(tl.float32), sums, squares)
        out_sums, out_squares = add_sums_and_squares(out, y, out_sums, out_squares)
    total, square, out_total, out_square = four_sums(*sums_of_thread(sums, squares), *sums_of_thread(out_sums, out_squares))
    largest, out_largest = largest_of_all(largest, X.dtype.element_ty), largest_of_all(out_largest, Y.dtype.element_ty)
    store_moments(place, total, square, 0.0, largest, 0.0)
    store_moments(place + 5, out_total, out_square, 0.0, out_largest, 0.0)
    # also NaN fails a comparison; of rows that there are not outputs were added up
    if not (square <= PLAIN and out_square <= PLAIN and is_nonfinite(out_largest) == 0 and last * ROWS <= M):
        tl.debug_barrier()
        moments_again(X, place, columns, first, last, M, x_row, x_col, D, ROWS, ALIGN, UNIT)
        moments_again(Y, place + 5, columns, first, last, M, D, 1, D, ROWS, 1, True)
