r"""Per query row: log-sum-exp, largest logit and entropy of attention, in one sweep over the keys.

With the running maximum m a row keeps $l = \sum e^{s-m}$ and $t = \sum e^{s-m}(s-m)$; where m moves to m', with
$a = e^{m-m'}$, $t' = a(t + l(m-m'))$ and $l' = a l$. Then lse = m + ln l and H = ln l - t/l, in which nothing cancels.
A row sees the keys of its span [lo, hi), which expresses causality, windows and packed sequences; a mask and a
bias come on top. Tiles that all rows see whole are not masked.
"""

from typing import no_type_check

import triton
import triton.language as tl

from stabilitylens.kernels._gpu._lanes import INTERPRETED
from stabilitylens.kernels._gpu.squash import tanh

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NEVER = tl.constexpr(float("-inf"))


@no_type_check
@triton.jit
def sweep(
    q, K, MASK, BIAS, first, last, lo, hi, k_row, mask_q, mask_k, bias_q, bias_k, queries, SK, scale, cap, m, total, t, big, count,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, PARTIAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take in the keys from ``first`` to ``last``; PARTIAL where some row sees only a part of them."""
    lanes, features = tl.arange(0, BN), tl.arange(0, BD)
    for start in tl.range(first, last, BN, num_stages=STAGES):
        keys = start + lanes
        inside = (features < D)[:, None]
        if PARTIAL:
            inside = inside & (keys < SK)[None, :]
        k = tl.load(K + keys[None, :].to(tl.int64) * k_row + features[:, None], mask=inside, other=0.0)
        if INTERPRETED:
            k = k.to(tl.float32)
        s = tl.dot(q, k, input_precision=PRECISION) * scale
        z = s
        if HAS_CAP:
            z = tanh(z / cap, False) * cap
        at = queries[:, None] * bias_q + keys[None, :] * bias_k
        if HAS_BIAS:
            z += tl.load(BIAS + at, mask=(queries >= 0)[:, None] & (keys < SK)[None, :], other=0.0).to(tl.float32)
        z = z * LOG2E
        if PARTIAL:
            seen = (keys[None, :] >= lo[:, None]) & (keys[None, :] < hi[:, None])
            if HAS_MASK:
                place = queries[:, None] * mask_q + keys[None, :] * mask_k
                seen = seen & (tl.load(MASK + place, mask=seen & (queries >= 0)[:, None], other=0) != 0)
                count += tl.sum(seen.to(tl.int32), 1)
            s = tl.where(seen, s, NEVER)
            z = tl.where(seen, z, NEVER)
        if HAS_CAP or HAS_BIAS:
            big = tl.maximum(big, tl.max(s, 1))
        top = tl.maximum(m, tl.max(z, 1))
        safe = tl.where(top == NEVER, 0.0, top)
        moved = tl.where(m == NEVER, 0.0, m - safe)
        shrink = tl.exp2(moved)
        z = z - safe[:, None]
        p = tl.exp2(z)
        if PARTIAL:
            z = tl.where(seen, z, 0.0)
        t = shrink * (t + total * moved) + tl.sum(p * z, 1)
        total = total * shrink + tl.sum(p, 1)
        m = top
    return m, total, t, big, count


@no_type_check
@triton.jit
def attention_rows(
    Q, K, LO, HI, MASK, BIAS, LSE, LARGEST, ENTROPY, COUNT, q_batch, q_head, q_row, k_batch, k_head, k_row,
    mask_batch, mask_head, mask_q, mask_k, bias_batch, bias_head, bias_q, bias_k, HEADS, GROUP, SQ, SK, scale, cap,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """BM query rows of one head a program."""
    batch, head = (tl.program_id(1) // HEADS).to(tl.int64), (tl.program_id(1) % HEADS).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    real = rows < SQ
    features = tl.arange(0, BD)
    inside = real[:, None] & (features < D)[None, :]
    q = tl.load(Q + batch * q_batch + head * q_head + rows[:, None].to(tl.int64) * q_row + features[None, :], mask=inside, other=0.0)
    if INTERPRETED:
        q = q.to(tl.float32)
    K += batch * k_batch + (head // GROUP) * k_head
    MASK += batch * mask_batch + head * mask_head
    BIAS += batch * bias_batch + head * bias_head
    lo, hi = tl.load(LO + rows, mask=real, other=0), tl.load(HI + rows, mask=real, other=0)
    queries = tl.where(real, rows, -1).to(tl.int64)
    begin = tl.min(tl.where(hi > lo, lo, SK), 0) // BN * BN
    end = tl.max(tl.where(hi > lo, hi, 0), 0)
    if HAS_MASK:
        middle, tail = begin, begin
    else:
        middle = tl.minimum(tl.cdiv(tl.max(tl.where(real, lo, 0), 0), BN) * BN, tl.cdiv(end, BN) * BN)
        tail = tl.maximum(middle, tl.min(tl.where(real, hi, SK), 0) // BN * BN)
    m = tl.full([BM], NEVER, tl.float32)
    big = tl.full([BM], NEVER, tl.float32)
    total = tl.zeros([BM], tl.float32)
    t = tl.zeros([BM], tl.float32)
    count = tl.zeros([BM], tl.int32)
    m, total, t, big, count = sweep(
        q, K, MASK, BIAS, begin, middle, lo, hi, k_row, mask_q, mask_k, bias_q, bias_k, queries, SK, scale, cap, m, total, t, big, count,
        D, BD, BN, True, HAS_MASK, HAS_BIAS, HAS_CAP, PRECISION, 1,
    )  # fmt: skip
    m, total, t, big, count = sweep(
        q, K, MASK, BIAS, middle, tail, lo, hi, k_row, mask_q, mask_k, bias_q, bias_k, queries, SK, scale, cap, m, total, t, big, count,
        D, BD, BN, False, False, HAS_BIAS, HAS_CAP, PRECISION, STAGES,
    )  # fmt: skip
    m, total, t, big, count = sweep(
        q, K, MASK, BIAS, tail, end, lo, hi, k_row, mask_q, mask_k, bias_q, bias_k, queries, SK, scale, cap, m, total, t, big, count,
        D, BD, BN, True, HAS_MASK, HAS_BIAS, HAS_CAP, PRECISION, 1,
    )  # fmt: skip
    if not HAS_MASK:
        count = tl.maximum(hi - lo, 0)
    if not (HAS_CAP or HAS_BIAS):
        big = m * LN2
    empty = count == 0
    safe_total = tl.where(empty, 1.0, total)
    out = tl.program_id(1).to(tl.int64) * SQ + rows
    tl.store(LSE + out, tl.where(empty, NEVER, (m + tl.log2(safe_total)) * LN2), mask=real)
    tl.store(LARGEST + out, tl.where(total != total, total, big), mask=real)
    tl.store(ENTROPY + out, tl.where(empty, 0.0, (tl.log2(safe_total) - t / safe_total) * LN2), mask=real)
    tl.store(COUNT + out, count, mask=real)
