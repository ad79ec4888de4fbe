"""Sums and largest magnitudes of what one thread holds of a tile, added up over tiles: only after the last do numbers cross threads.

A tile that was read 16 bytes at a time, V elements, lies in registers as (blocks of a cluster, reads, threads, V) of its
elements in order. Where it does not, every function here gives the same, only not as fast. On NVIDIA's GPUs 16-bit
elements are compared in pairs and added up by the tensor cores: see ``_fragments``.
"""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu import _fragments
from stabilitylens.kernels._gpu._lanes import INTERPRETED


@no_type_check
@triton.jit
def by_thread(t, THREADS: tl.constexpr, CLUSTERS: tl.constexpr, V: tl.constexpr):
    """As (thread, element)."""
    EACH: tl.constexpr = t.numel // (THREADS * CLUSTERS)
    WIDTH: tl.constexpr = V if EACH > V else EACH
    t = tl.permute(tl.reshape(t, (CLUSTERS, EACH // WIDTH, THREADS, WIDTH)), (0, 2, 1, 3))
    return tl.reshape(t, (THREADS * CLUSTERS, EACH))


@no_type_check
@triton.jit
def halves(t):
    """The elements of each thread, in two."""
    t = tl.reshape(t, (t.shape[0], 2, t.shape[1] // 2))
    return tl.split(tl.permute(t, (0, 2, 1)))


@no_type_check
@triton.jit
def _add_squares(t, sums):
    if t.shape[1] == sums.shape[1]:
        return sums + t * t
    else:
        a, b = halves(t)
        return _add_squares(b, _add_squares(a, sums))


@no_type_check
@triton.jit
def no_sums(dtype: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr, PAIRS: tl.constexpr):
    """Σ and Σ² of nothing: 8 numbers each a thread where the tensor cores add up, else one."""
    if PAIRS and not INTERPRETED and dtype != tl.float32 and EACH >= 8:
        return tl.zeros([THREADS, 8], tl.float32), tl.zeros([THREADS, 8], tl.float32)
    else:
        return tl.zeros([THREADS, 1], tl.float32), tl.zeros([THREADS, 1], tl.float32)


@no_type_check
@triton.jit
def add_sums(t, exact, sums):
    """Add Σ of ``t``, or of what it was rounded from, ``exact``, where no tensor core does it."""
    if sums.shape[1] == 8:
        return _fragments.add(t, sums)
    else:
        return sums + tl.sum(exact, 1)[:, None]


@no_type_check
@triton.jit
def add_sums_and_squares(t, exact, sums, squares):
    """The same, and Σ²."""
    if sums.shape[1] == 8:
        return _fragments.add_both(t, sums, squares)
    elif INTERPRETED:
        return sums + tl.sum(exact, 1)[:, None], squares + tl.sum(exact * exact, 1)[:, None]
    else:
        pairs = _add_squares(exact, tl.zeros([exact.shape[0], 2], tl.float32))
        return sums + tl.sum(exact, 1)[:, None], squares + tl.sum(pairs, 1)[:, None]


@no_type_check
@triton.jit
def sums_of_thread(sums, squares):
    """Σ and Σ² of each thread."""
    if sums.shape[1] == 8:
        return tl.sum(sums, 1) * 0.125, tl.sum(_fragments.squares(squares), 1)
    else:
        return tl.sum(sums, 1), tl.sum(squares, 1)


@no_type_check
@triton.jit
def no_largest(dtype: tl.constexpr, THREADS: tl.constexpr, PAIRS: tl.constexpr):
    """The largest magnitude of nothing; on NVIDIA's GPUs as bits, of 16 bits those of two elements a thread."""
    if not PAIRS or INTERPRETED:
        return tl.zeros([THREADS, 1], tl.float32)
    elif dtype == tl.float32:
        return tl.zeros([THREADS, 1], tl.int32)
    else:
        return tl.zeros([THREADS, 2], tl.int16)


@no_type_check
@triton.jit
def _one_by_one(t, found):
    """In a chain, since on sm_90 three are compared at once."""
    if t.shape[1] == found.shape[1]:
        return _fragments.larger_magnitudes(found, t)
    else:
        a, b = halves(t)
        return _one_by_one(b, _one_by_one(a, found))


@no_type_check
@triton.jit
def add_largest(t, found):
    """The largest magnitudes of each thread, of what was found before and what it holds."""
    if found.dtype == tl.float32:
        return tl.maximum(found, tl.max(tl.abs(t.to(tl.float32)), 1)[:, None])
    elif found.dtype == tl.int32 and t.shape[1] > 1:
        a, b = halves(t)
        return _one_by_one(tl.maximum(tl.abs(a), tl.abs(b)), found)
    else:
        return _one_by_one(tl.abs(t) if found.dtype == tl.int32 else t, found)


@no_type_check
@triton.jit
def largest_of_all(found, dtype: tl.constexpr):
    """Largest magnitude of all threads, in fp32; as integers, whose maximum a warp finds in one instruction."""
    if found.dtype != tl.float32:
        found = found.to(dtype, bitcast=True).to(tl.float32)
    return tl.max(tl.max(found, 1).to(tl.int32, bitcast=True), 0).to(tl.float32, bitcast=True)
