"""The forward of DyT and Derf: one read and one write, no reduction over a row."""

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra import libdevice

from stabilitylens.kernels._gpu._lanes import INTERPRETED, load_row_vector, offsets, rounded

#: -2 / ln 2
SLOPE = tl.constexpr(-2.8853900817779268)


@no_type_check
@triton.jit
def _ratio(a, b):
    """a / b for b from 1 to 2, where the division that is not scaled for denominators near overflow is as exact."""
    if INTERPRETED:
        return a / b
    else:
        return libdevice.fast_dividef(a, b)


@no_type_check
@triton.jit
def tanh(x, FAST: tl.constexpr):
    """By e^(-2|x|), and by its series where that would cancel; FAST by the hardware."""
    if FAST and not INTERPRETED:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        a = tl.abs(x)
        e = tl.exp2(a * SLOPE)
        large = _ratio(1.0 - e, 1.0 + e)
        s = x * x
        small = a * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.05396825 + s * 0.02186949))))
        y = tl.where(a < 0.25, small, large)
        return tl.where(x < 0, -y, y)


@no_type_check
@triton.jit
def squashed(h, ERF: tl.constexpr, FAST: tl.constexpr):
    """f(h)."""
    if ERF:
        if FAST:
            return tanh(h * (1.1297 + 0.0998 * h * h), FAST)
        else:
            return tl.math.erf(h)
    else:
        return tanh(h, FAST)


@no_type_check
@triton.jit
def _inside(rows, columns, M, D: tl.constexpr, BLOCK: tl.constexpr):
    """Which elements of a tile there are; where tiles fill the rows only whole rows may be missing."""
    if D % BLOCK == 0:
        return (rows < M)[:, None]
    else:
        return (rows < M)[:, None] & (columns < D)[None, :]


@no_type_check
@triton.jit
def squash_tile(
    tile, columns, X, alpha, shift, w, b, Y, M, x_row, x_col,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    ERF: tl.constexpr, FAST: tl.constexpr, HAS_S: tl.constexpr, HAS_B: tl.constexpr,
):  # fmt: skip
    """A tile of ROWS rows of some columns: what was read, what was stored, and that before it was rounded.

    Past the end of a row gain and bias are 0, and so is all of it unless α or s is not finite, where nothing else is either.
    """
    rows = tile * ROWS + tl.arange(0, ROWS)
    inside = _inside(rows, columns, M, D, BLOCK)
    x = tl.load(X + offsets(rows, columns, x_row, x_col, ALIGN, UNIT), mask=inside, other=0.0)
    h = x.to(tl.float32) * alpha
    if HAS_S:
        h += shift
    y = squashed(h, ERF, FAST) * w
    if HAS_B:
        y += b
    out = rounded(y, Y.dtype.element_ty)
    tl.store(Y + rows.to(tl.int64)[:, None] * D + columns[None, :], out, mask=inside)
    return x, out, y


@no_type_check
@triton.jit
def constants(ALPHA, SHIFT, W, B, columns, D: tl.constexpr, BLOCK: tl.constexpr, HAS_S: tl.constexpr, HAS_B: tl.constexpr):
    """α, s, and gain and bias of some columns, in fp32."""
    shift, b = 0.0, 0.0
    if HAS_S:
        shift = tl.load(SHIFT).to(tl.float32)
    if HAS_B:
        b = load_row_vector(B, columns, D, BLOCK)
    return tl.load(ALPHA).to(tl.float32), shift, load_row_vector(W, columns, D, BLOCK), b


@no_type_check
@triton.jit
def squash_forward(
    X, ALPHA, SHIFT, W, B, Y, M, x_row, x_col,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ALIGN: tl.constexpr, UNIT: tl.constexpr,
    ERF: tl.constexpr, FAST: tl.constexpr, HAS_S: tl.constexpr, HAS_B: tl.constexpr,
):  # fmt: skip
    """A tile of ROWS rows and BLOCK columns a program."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    alpha, shift, w, b = constants(ALPHA, SHIFT, W, B, columns, D, BLOCK, HAS_S, HAS_B)
    squash_tile(tl.program_id(0), columns, X, alpha, shift, w, b, Y, M, x_row, x_col, D, BLOCK, ROWS, ALIGN, UNIT, ERF, FAST, HAS_S, HAS_B)
