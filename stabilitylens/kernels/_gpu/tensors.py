"""Moments of many tensors in one launch: a program a chunk, told by tables where the chunk lies.

A chunk gets seven numbers: Σ, Σ|x|, Σ² and its scale, largest magnitude, NaN and Inf, NaN alone. NaN and Inf are
counted only where Σ² is not finite, by reading the chunk again.
"""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import is_nonfinite


@no_type_check
@triton.jit
def tensor_chunks(
    ADDRESSES, SIZES, TENSOR_OF, CHUNK_OF, OUT,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One chunk of CHUNK elements."""
    program = tl.program_id(0)
    tensor = tl.load(TENSOR_OF + program)
    start = tl.load(CHUNK_OF + program).to(tl.int64) * CHUNK
    pointer = tl.load(ADDRESSES + tensor).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    left = tl.minimum(tl.load(SIZES + tensor) - start, CHUNK).to(tl.int32)
    lanes = tl.arange(0, BLOCK)
    base = pointer + start
    total = tl.zeros([BLOCK], tl.float32)
    absolute = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    largest = tl.zeros([BLOCK], tl.float32)
    whole = left // BLOCK * BLOCK
    for at in range(0, whole, BLOCK):
        x = tl.load(base + at + lanes).to(tl.float32)
        a = tl.abs(x)
        total += x
        absolute += a
        squares += x * x
        largest = tl.maximum(largest, a)
    x = tl.load(base + whole + lanes, mask=lanes < left - whole, other=0.0).to(tl.float32)
    total += x
    absolute += tl.abs(x)
    squares += x * x
    largest = tl.maximum(largest, tl.abs(x))
    ssq, top = tl.sum(squares, 0), tl.max(largest, 0)
    scale, bad, nans = 1.0, 0.0, 0.0
    if is_nonfinite(ssq) > 0:
        safe = tl.maximum(top, 1e-30)
        counts = tl.zeros([BLOCK], tl.float32)
        not_numbers = tl.zeros([BLOCK], tl.float32)
        scaled = tl.zeros([BLOCK], tl.float32)
        for at in range(0, left, BLOCK):
            x = tl.load(base + at + lanes, mask=lanes < left - at, other=0.0).to(tl.float32)
            counts += is_nonfinite(x)
            not_numbers += (x != x).to(tl.float32)
            scaled += (x / safe) * (x / safe)
        bad, nans = tl.sum(counts, 0), tl.sum(not_numbers, 0)
        if bad == 0:
            scale, ssq = top, tl.sum(scaled, 0)
    place = OUT + program * 7
    tl.store(place, tl.sum(total, 0))
    tl.store(place + 1, tl.sum(absolute, 0))
    tl.store(place + 2, ssq)
    tl.store(place + 3, scale)
    tl.store(place + 4, top)
    tl.store(place + 5, bad)
    tl.store(place + 6, nans)
