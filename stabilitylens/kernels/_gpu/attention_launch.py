"""Launch of the attention-statistics kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from stabilitylens.kernels._choice import interpreted
from stabilitylens.kernels._gpu.attention import attention_rows

#: query rows and keys of a tile in 16 bits, and query rows in fp32, whose products take three times the registers
ROWS, KEYS, ROWS_FP32 = 128, 64, 64


def _broadcast(x: Tensor | None, q: Tensor, keys: int) -> tuple[Tensor, tuple[int, ...]]:
    """A mask or bias with strides for (batch, head, query, key), 0 where it is broadcast."""
    if x is None:
        return q, (0, 0, 0, 0)
    full = x.expand(q.shape[0], q.shape[1], q.shape[2], keys)
    return full, full.stride()


def launch(
    q: Tensor, k: Tensor, lo: Tensor, hi: Tensor, scale: float, mask: Tensor | None, bias: Tensor | None, soft_cap: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Visible keys, largest logit, log-sum-exp and entropy of each row, shape (batch, head, query)."""
    batch, heads, queries, d = q.shape
    keys = k.shape[2]
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    largest, lse, entropy = (torch.empty(batch, heads, queries, device=q.device) for _ in range(3))
    count = torch.empty(batch, heads, queries, dtype=torch.int32, device=q.device)
    if not q.numel():
        return count, largest, lse, entropy
    m, mask_strides = _broadcast(None if mask is None else mask.view(torch.uint8), q, keys)
    b, bias_strides = _broadcast(bias, q, keys)
    wide = q.dtype is torch.float32
    rows, columns = (32, 32) if interpreted() else (ROWS_FP32, 32 if d <= 64 else 16) if wide else (ROWS, KEYS)
    attention_rows[(-(-queries // rows), batch * heads)](
        q, k, lo, hi, m, b, lse, largest, entropy, count, *q.stride()[:3], *k.stride()[:3], *mask_strides, *bias_strides,
        heads, heads // k.shape[1], queries, keys, scale, 1.0 if soft_cap is None else soft_cap,
        D=d, BD=max(16, 1 << (d - 1).bit_length()), BM=rows, BN=columns, HAS_MASK=mask is not None, HAS_BIAS=bias is not None,
        HAS_CAP=soft_cap is not None, PRECISION="tf32x3" if wide and torch.version.hip is None else "ieee", STAGES=2,
        num_warps=4 if wide else 8, enable_fp_fusion=True,
    )  # fmt: skip
    return count, largest, lse, entropy
