"""What the kernels share: rounding, reductions of several values at once, and the count of NaN and Inf.

In Triton's interpreter bf16 casts truncate and reductions with a function of one's own take 100 µs an
element, so there both are spelled out by other means; every function gives the same result in both.
"""

import os
from typing import no_type_check

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
#: a sum of squares up to which nothing can have overflowed, and what larger elements are multiplied by
PLAIN, SCALE = tl.constexpr(2.0**100), tl.constexpr(2.0**-80)


@no_type_check
@triton.jit
def is_nonfinite(x):
    """1 where the exponent of an fp32 value is all ones."""
    return ((x.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000).to(tl.float32)


@no_type_check
@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Cast fp32 to nearest, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        up = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        nan = (bits & 0x7FFFFFFF) > 0x7F800000
        return tl.where(nan, bits | 0x400000, up).to(tl.float32, bitcast=True).to(dtype)
    else:
        return x.to(dtype)


@no_type_check
@triton.jit
def _add_max(a, b, c, d):
    return a + c, tl.maximum(b, d)


@no_type_check
@triton.jit
def _add_add(a, b, c, d):
    return a + c, b + d


@no_type_check
@triton.jit
def _add_four(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@no_type_check
@triton.jit
def four_sums(a, b, c, d):
    """Of vectors, in one reduction."""
    if INTERPRETED:
        return tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0), tl.sum(d, 0)
    else:
        return tl.reduce((a, b, c, d), 0, _add_four)


@no_type_check
@triton.jit
def sum_max(a, b):
    """Along the last axis of a tile, in one reduction: a sum and a maximum."""
    if INTERPRETED:
        return tl.sum(a, 1), tl.max(b, 1)
    else:
        return tl.reduce((a, b), 1, _add_max)


@no_type_check
@triton.jit
def sum_sum(a, b):
    """Along the last axis of a tile, in one reduction: two sums."""
    if INTERPRETED:
        return tl.sum(a, 1), tl.sum(b, 1)
    else:
        return tl.reduce((a, b), 1, _add_add)


@no_type_check
@triton.jit
def largest_of(x):
    """The maximum of a vector, NaN where one of it is; ``tl.max`` drops NaN."""
    return tl.where(tl.sum((x != x).to(tl.int32), 0) > 0, float("nan"), tl.max(x, 0))


@no_type_check
@triton.jit
def store_moments(place, total, squares, scaled, largest, bad):
    """The five numbers."""
    tl.store(place, total)
    tl.store(place + 1, squares)
    tl.store(place + 2, scaled)
    tl.store(place + 3, largest)
    tl.store(place + 4, bad)


@no_type_check
@triton.jit
def squares_or_scaled(x):
    """Σ² of each row, 0 where that is finite but may overflow with others; Σ(x/2^80)² of those rows; how many are not finite."""
    bad = tl.sum(is_nonfinite(x), 1)
    squares = tl.sum(x * x, 1)
    large = (bad == 0) & ~(squares <= PLAIN)
    small = x * SCALE
    return tl.where(large, 0.0, squares), tl.where(large, tl.sum(small * small, 1), 0.0), bad


@no_type_check
@triton.jit
def load_row_vector(pointer, columns, D: tl.constexpr, BLOCK: tl.constexpr):
    """A part of a parameter as one fp32 row, shape (1, BLOCK)."""
    if D % BLOCK == 0:
        return tl.load(pointer + columns).to(tl.float32)[None, :]
    else:
        return tl.load(pointer + columns, mask=columns < D, other=0.0).to(tl.float32)[None, :]


@no_type_check
@triton.jit
def offsets(rows, columns, row_stride, column_stride, ALIGN: tl.constexpr, UNIT: tl.constexpr):
    """64-bit offsets of a tile; ``row_stride`` counts ALIGN elements, so that wide loads are known to be aligned."""
    start = (rows.to(tl.int64) * row_stride)[:, None] * ALIGN
    if UNIT:
        return start + columns[None, :]
    else:
        return start + columns[None, :].to(tl.int64) * column_stride
