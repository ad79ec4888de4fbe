"""Forward of LayerNorm and RMSNorm for rows that fit into registers: one read, one write; a program normalises a tile of ROWS rows."""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import load_row_vector, offsets, rounded


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
    """Gain and bias in fp32, in a rounding mode: 0 rounds once at the end, 1 as Llama, 2 as Gemma, 3 before a bias and at the end."""
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
def parameters(W, B, columns, D: tl.constexpr, BLOCK: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr):
    """Gain and bias of all columns."""
    w, b = 1.0, 0.0
    if HAS_W:
        w = load_row_vector(W, columns, D, BLOCK)
    if HAS_B:
        b = load_row_vector(B, columns, D, BLOCK)
    return w, b


@no_type_check
@triton.jit
def _inside(rows, columns, M, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Which elements of a tile there are; a tile of one row always has it."""
    if ROWS > 1 and D != BLOCK:
        return (rows < M)[:, None] & (columns < D)[None, :]
    elif ROWS > 1:
        return (rows < M)[:, None]
    else:
        return (columns < D)[None, :]


@no_type_check
@triton.jit
def load_tile(
    tile, X, R, S, M, x_row, x_col, r_row, r_col,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr, ADD: tl.constexpr, ADD_ROUNDED: tl.constexpr,
):  # fmt: skip
    """Tile number ``tile`` of a matrix of M rows, or of the sum of two, which is stored: in its own dtype, and what is normalised in fp32."""
    rows, columns = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = _inside(rows, columns, M, D, BLOCK, ROWS)
    read = tl.load(X + offsets(rows, columns, x_row, x_col, ALIGN, UNIT), mask=inside, other=0.0)
    x = read.to(tl.float32)
    if ADD:
        x += tl.load(R + offsets(rows, columns, r_row, r_col, ALIGN, UNIT), mask=inside, other=0.0).to(tl.float32)
        read = rounded(x, S.dtype.element_ty)
        tl.store(S + rows.to(tl.int64)[:, None] * D + columns[None, :], read, mask=inside)
        if ADD_ROUNDED:
            x = read.to(tl.float32)
    return read, x


@no_type_check
@triton.jit
def normalise_tile(
    tile, x, w, b, W, B, Y, MEAN, RSTD, M, eps, in_dtype: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CENTRED: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
):  # fmt: skip
    """Normalise a tile and store it: what was stored, before it was rounded, Σ (where it is taken) and Σ² of each row.

    Gain and bias are ``w`` and ``b``, or where they are None read from W and B as late as can be: they take registers.
    """
    rows, columns = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    total = tl.zeros([ROWS], tl.float32)
    if CENTRED:
        total = tl.sum(x, 1)
        mean = total / D
        h = x - mean[:, None]
        if D != BLOCK:
            h = tl.where((columns < D)[None, :], h, 0.0)
        squares = tl.sum(h * h, 1)
        power = squares + mean * mean * D
        tl.store(MEAN + rows, mean, mask=rows < M)
    else:
        h = x
        squares = tl.sum(x * x, 1)
        power = squares
    rstd = tl.rsqrt(squares / D + eps)
    tl.store(RSTD + rows, rstd, mask=rows < M)
    if w is None:
        w, b = parameters(W, B, columns, D, BLOCK, HAS_W, HAS_B)
    h = h * rstd[:, None]
    out = rounded(affine(h, w, b, in_dtype, Y.dtype.element_ty, ROUNDING, HAS_W, HAS_B), Y.dtype.element_ty)
    tl.store(Y + rows.to(tl.int64)[:, None] * D + columns[None, :], out, mask=_inside(rows, columns, M, D, BLOCK, ROWS))
    return out, affine(h, w, b, tl.float32, tl.float32, ROUNDING, HAS_W, HAS_B), total, power


@no_type_check
@triton.jit
def norm_forward(
    X, R, S, W, B, Y, MEAN, RSTD, M, x_row, x_col, r_row, r_col, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    CENTRED: tl.constexpr, ROUNDING: tl.constexpr, HAS_W: tl.constexpr, HAS_B: tl.constexpr,
    ADD: tl.constexpr, ADD_ROUNDED: tl.constexpr,
):  # fmt: skip
    """One tile a program."""
    tile = tl.program_id(0)
    w, b = parameters(W, B, tl.arange(0, BLOCK), D, BLOCK, HAS_W, HAS_B)
    _, x = load_tile(tile, X, R, S, M, x_row, x_col, r_row, r_col, D, BLOCK, ROWS, ALIGN, UNIT, ADD, ADD_ROUNDED)
    normalise_tile(tile, x, w, b, W, B, Y, MEAN, RSTD, M, eps, X.dtype.element_ty, D, BLOCK, ROWS, CENTRED, ROUNDING, HAS_W, HAS_B)


@no_type_check
@triton.jit
def pair_forward(
    Q, WQ, YQ, RSTD_Q, MQ, q_row, q_col, K, WK, YK, RSTD_K, MK, k_row, k_col, eps, q_tiles,
    DQ: tl.constexpr, BLOCK_Q: tl.constexpr, ROWS_Q: tl.constexpr, ALIGN_Q: tl.constexpr, UNIT_Q: tl.constexpr,
    DK: tl.constexpr, BLOCK_K: tl.constexpr, ROWS_K: tl.constexpr, ALIGN_K: tl.constexpr, UNIT_K: tl.constexpr,
    ROUNDING: tl.constexpr,
):  # fmt: skip
    """RMSNorm of queries by the first programs and of keys by the others."""
    tile = tl.program_id(0)
    if tile < q_tiles:
        w, b = parameters(WQ, WQ, tl.arange(0, BLOCK_Q), DQ, BLOCK_Q, True, False)
        _, x = load_tile(tile, Q, Q, Q, MQ, q_row, q_col, 0, 0, DQ, BLOCK_Q, ROWS_Q, ALIGN_Q, UNIT_Q, False, False)
        normalise_tile(tile, x, w, b, WQ, WQ, YQ, RSTD_Q, RSTD_Q, MQ, eps, Q.dtype.element_ty, DQ, BLOCK_Q, ROWS_Q, False, ROUNDING, True, False)
    else:
        tile -= q_tiles
        w, b = parameters(WK, WK, tl.arange(0, BLOCK_K), DK, BLOCK_K, True, False)
        _, x = load_tile(tile, K, K, K, MK, k_row, k_col, 0, 0, DK, BLOCK_K, ROWS_K, ALIGN_K, UNIT_K, False, False)
        normalise_tile(tile, x, w, b, WK, WK, YK, RSTD_K, RSTD_K, MK, eps, K.dtype.element_ty, DK, BLOCK_K, ROWS_K, False, ROUNDING, True, False)
