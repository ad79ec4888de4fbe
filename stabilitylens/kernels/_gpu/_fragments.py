"""16-bit elements in the registers of NVIDIA's GPUs: pairs compared, and tiles multiplied by the tensor cores.

Sums: a warp's elements as a matrix A of 16 columns, times ones, have each row's sum in each of 8 columns, so that all the
numbers of the product add up to 8 Σ whatever lies where. Sums of squares: in ``mma.m16n8k8`` (PTX ISA, "Matrix Fragments for
mma.m16n8k8") a thread holds of the 16 x 8 matrix A the pairs at (row g, column 2t) and (g + 8, 2t), of the 8 x 8 matrix B
the pair at (row 2t, column g), and of the product (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), with g = lane // 4 and
t = lane % 4. Each half of A is thus B for its own transpose, and has its rows' sums of squares where g is 2t or 2t + 1.

Largest magnitudes: bits without the sign are in the order of the numbers whatever the format. So those of fp32 are compared
as integers, of which sm_90 takes three at once, and those of bf16 as fp16, of which it takes three pairs, and their magnitudes
for nothing. What is NaN as fp16 is 2^121 or more as bf16, or NaN: it is passed over, but its square is not finite, so that the
kernels read again.
"""

from typing import no_type_check

import triton
import triton.language as tl


def _mma(columns: int, kind: str, into: int, a: tuple[int, ...], b: str) -> str:
    product, rows = ("{" + ", ".join(f"${i}" for i in places) + "}" for places in (range(into, into + 4), a))
    return f"mma.sync.aligned.m16n8k{columns}.row.col.f32.{kind}.{kind}.f32 {product}, {rows}, {{{b}}}, {product};"


def _add(kind: str, one: str, pairs: int) -> str:
    return f"{{ .reg .b32 one; mov.b32 one, {one}; {_mma(16, kind, 0, tuple(range(pairs, pairs + 4)), 'one, one')} }}"


def _add_squares(kind: str) -> str:
    """The upper halves' into four numbers, the lower halves' into four others."""
    return "".join(_mma(8, kind, into, (i, i + 1), f"${i + half}") for i in (16, 18) for half, into in ((0, 8), (1, 12)))


def _places(numbers: int) -> str:
    """So many fp32 numbers in and out, and 8 elements as 4 pairs."""
    return ",".join(["=f"] * numbers + ["r"] * 4 + [str(i) for i in range(numbers)])


_PLACES, _BOTH_PLACES = tl.constexpr(_places(8)), tl.constexpr(_places(16))
_BF16, _FP16 = tl.constexpr(_add("bf16", "0x3F803F80", 8)), tl.constexpr(_add("f16", "0x3C003C00", 8))
_BF16_BOTH = tl.constexpr(_add("bf16", "0x3F803F80", 16) + _add_squares("bf16"))
_FP16_BOTH = tl.constexpr(_add("f16", "0x3C003C00", 16) + _add_squares("f16"))
#: what is on the diagonal of the upper half, and of the lower
_READ = tl.constexpr(
    "{ .reg .b32 g, t; .reg .pred even, odd; mov.u32 t, %laneid; shr.u32 g, t, 2; and.b32 t, t, 3; shl.b32 t, t, 1;"
    "setp.eq.u32 even, g, t; add.u32 t, t, 1; setp.eq.u32 odd, g, t; mov.f32 $1, 0f00000000; mov.f32 $2, $1; mov.f32 $3, $1;"
    "mov.f32 $4, $1; mov.f32 $5, $1; mov.f32 $6, $1; mov.f32 $7, $1; selp.f32 $0, $8, $1, even; @odd add.f32 $0, $0, $9;"
    "selp.f32 $2, $14, $1, even; @odd add.f32 $2, $2, $15; }"
)
_LARGER = tl.constexpr("{ .reg .b32 a; abs.f16x2 a, $2; max.f16x2 $0, $1, a; }")
_READ_PLACES = tl.constexpr(",".join(["=&f"] * 8 + ["f"] * 8))


@no_type_check
@triton.jit
def add(t, sums):
    """Add Σ of 8 elements a thread, or of 8 after 8; all numbers of ``sums`` together are 8 Σ."""
    if t.shape[1] > 8:
        a, b = tl.split(tl.permute(tl.reshape(t, (t.shape[0], 2, t.shape[1] // 2)), (0, 2, 1)))
        return add(b, add(a, sums))
    elif t.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(_BF16, _PLACES, [t, sums], dtype=tl.float32, is_pure=True, pack=8)
    else:
        return tl.inline_asm_elementwise(_FP16, _PLACES, [t, sums], dtype=tl.float32, is_pure=True, pack=8)


@no_type_check
@triton.jit
def add_both(t, sums, products):
    """Add Σ as :func:`add` does, and products of the elements, of which :func:`squares` has those of each with itself."""
    if t.shape[1] > 8:
        a, b = tl.split(tl.permute(tl.reshape(t, (t.shape[0], 2, t.shape[1] // 2)), (0, 2, 1)))
        sums, products = add_both(a, sums, products)
        return add_both(b, sums, products)
    elif t.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(_BF16_BOTH, _BOTH_PLACES, [t, sums, products], dtype=(tl.float32, tl.float32), is_pure=True, pack=8)
    else:
        return tl.inline_asm_elementwise(_FP16_BOTH, _BOTH_PLACES, [t, sums, products], dtype=(tl.float32, tl.float32), is_pure=True, pack=8)


@no_type_check
@triton.jit
def squares(products):
    """Numbers that together are Σ²."""
    return tl.inline_asm_elementwise(_READ, _READ_PLACES, [products], dtype=tl.float32, is_pure=True, pack=8)


@no_type_check
@triton.jit
def larger_magnitudes(found, t):
    """The larger of what was found, as bits, and of the magnitudes of ``t``, whose sign is 0 where it is of fp32."""
    if t.dtype == tl.float32:
        return tl.inline_asm_elementwise("max.s32 $0, $1, $2;", "=r,r,r", [found, t], dtype=tl.int32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise(_LARGER, "=r,r,r", [found, t], dtype=tl.int16, is_pure=True, pack=2)
