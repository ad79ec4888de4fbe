"""What the kernels share: rounding, reductions of several values at once, and the count of NaN and Inf.

In Triton's interpreter bf16 casts truncate and reductions with a function of one's own take 100 µs an
element, so there both are spelled out by other means; every function gives the same result in both.
"""

import os
from typing import no_type_check

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


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
def _add_add_max(a, b, c, d, e, f):
    return a + d, b + e, tl.maximum(c, f)


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
def sum_sum_max(a, b, c):
    """Along the last axis of a tile, in one reduction: two sums and a maximum."""
    if INTERPRETED:
        return tl.sum(a, 1), tl.sum(b, 1), tl.max(c, 1)
    else:
        return tl.reduce((a, b, c), 1, _add_add_max)


@no_type_check
@triton.jit
def _add_add_max_twice(a, b, c, d, e, f, g, h, i, j, k, m):
    return a + g, b + h, tl.maximum(c, i), d + j, e + k, tl.maximum(f, m)


@no_type_check
@triton.jit
def moments_of_two(x, z):
    """Along the last axis of two tiles, in one reduction: of each the sum of squares, the sum and the largest magnitude."""
    if INTERPRETED:
        a, b, c = sum_sum_max(x * x, x, tl.abs(x))
        d, e, f = sum_sum_max(z * z, z, tl.abs(z))
        return a, b, c, d, e, f
    else:
        return tl.reduce((x * x, x, tl.abs(x), z * z, z, tl.abs(z)), 1, _add_add_max_twice)


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
def load_row_vector(pointer, columns, D: tl.constexpr, BLOCK: tl.constexpr):
    """A parameter as one fp32 row, shape (1, BLOCK)."""
    if D == BLOCK:
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
