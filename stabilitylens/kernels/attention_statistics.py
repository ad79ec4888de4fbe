"""Entropy, log-sum-exp and largest logit of attention, exact under its mask, without keeping S x S.

A row of logits s is reduced with its maximum m to l = Σ e^(s-m) and t = Σ e^(s-m) (s-m). Then
lse = m + ln l and the entropy is H = ln l - t / l, a difference of two non-negative terms, so that
nothing cancels. Rows go in chunks; where logits may exceed ``FP64_ABOVE`` the chunk is done in fp64,
since an fp32 logit of 1e4 is only known to 6e-4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from stabilitylens.kernels._choice import uses_triton

#: an additive mask at or below this hides a key: BERT's old -10,000 is the weakest mask in use
HIDDEN = -9e3
#: bound on |logit| above which fp32 no longer gives the entropy to 1e-4 nat
FP64_ABOVE = 1e3
#: stands for -inf where exp and products must stay finite
LOW = -1e30


def may_be(condition: Bool[Tensor, ""]) -> bool:
    """Whether a condition holds; on other devices than the CPU it may, since looking would wait for them."""
    return condition.device.type != "cpu" or bool(condition)


@dataclass(frozen=True)
class Visibility:
    """What hides keys and what is added to logits: broadcastable to (batch, head, query, key).

    Attributes:
        visible: True where a query sees a key; None where it sees all that ``causal`` allows.
        bias: added to the logits before the softmax.
        causal: query i sees keys 0 to i (aligned top left, as torch does).
        modify: makes the softmax's input of a chunk of scaled logits, shape (batch, head, query, key), given it and the
            index of its first query; None where only ``bias`` and a soft-cap do.
    """

    visible: Bool[Tensor, "..."] | None = None
    bias: Float[Tensor, "..."] | None = None
    causal: bool = False
    modify: Callable[[Tensor, int], Tensor] | None = None

    @classmethod
    def of(cls, mask: Shaped[Tensor, "..."] | None, causal: bool) -> Visibility:
        """From the mask argument of scaled dot-product attention, boolean or additive."""
        if mask is None:
            return cls(causal=causal)
        mask = mask.detach()
        mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
        if mask.dtype is torch.bool:
            return cls(visible=mask, causal=causal)
        visible = mask > HIDDEN
        bias = mask.masked_fill(~visible, 0)
        return cls(visible, bias if may_be(bias.any()) else None, causal)


def _seen(view: Visibility, q: Tensor, k: Tensor) -> Bool[Tensor, "#batch #head #query key"]:
    """Keys that at least one query sees."""
    last = q.shape[2] - 1
    if view.visible is None:
        seen = torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool, device=k.device)
    elif view.causal:
        full = view.visible.expand(-1, -1, q.shape[2], k.shape[2])
        seen = torch.tril(full).any(2, keepdim=True)
    else:
        seen = view.visible.any(2, keepdim=True).expand(-1, -1, 1, k.shape[2])
    if view.causal and k.shape[2] > last + 1:
        seen = seen & (torch.arange(k.shape[2], device=k.device) <= last)
    return seen


def _chunk_rows(keys: int) -> int:
    return 128 if keys >= 4096 else 32


@dataclass
class _Rows:
    """Per query row, shape (batch, head, query)."""

    count: Tensor
    largest: Tensor
    lse: Tensor
    entropy: Tensor


def _part(x: Tensor, start: int, stop: int, keys: int) -> Tensor:
    """Rows ``start`` to ``stop`` and the first ``keys`` columns of a broadcastable mask."""
    x = x[:, :, start:stop] if x.shape[2] > 1 else x
    return x[..., :keys] if x.shape[3] > 1 else x


#: per query row of a chunk: keys seen, largest logit, the maximum m that was taken off, Σ e^(s-m), Σ e^(s-m) (s-m)
_Sums = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _reduce(s: Tensor, spare: Tensor, view: Visibility, start: int, soft_cap: float | None) -> _Sums:
    """Reduce one chunk of raw logits, shape (batch, head, query, key); ``s`` and ``spare``, of its shape, are overwritten."""
    rows, keys = s.shape[2:]
    if view.causal and view.visible is None and view.modify is None:
        return _reduce_causal(s, spare, view, start, soft_cap)
    hidden = None if view.visible is None else ~_part(view.visible, start, start + rows, keys)
    if view.causal:
        ahead = torch.ones(rows, keys, dtype=torch.bool, device=s.device).triu(start + 1)
        hidden = ahead if hidden is None else hidden | ahead
    modified = None if view.modify is None else view.modify(s, start)
    if modified is not None:
        hidden = modified <= HIDDEN if hidden is None else hidden | (modified <= HIDDEN)
    if hidden is not None:
        s.masked_fill_(hidden, LOW)
        count = (~hidden).expand(s.shape).sum(-1)
    else:
        count = torch.full(s.shape[:3], keys, device=s.device)
    largest = s.amax(-1)
    if soft_cap is not None:
        s.div_(soft_cap).tanh_().mul_(soft_cap)
    if view.bias is not None:
        s.add_(_part(view.bias, start, start + rows, keys))
    if modified is not None:
        s = modified.clone()
    changed = soft_cap is not None or view.bias is not None or view.modify is not None
    if hidden is not None and changed:
        s.masked_fill_(hidden, LOW)
    return _summed(s, spare, count, largest, s.amax(-1) if changed else largest)


def _reduce_causal(s: Tensor, spare: Tensor, view: Visibility, start: int, soft_cap: float | None) -> _Sums:
    """As :func:`_reduce` where nothing but the order hides: only the columns from ``start`` on are touched."""
    rows, keys = s.shape[2:]
    ahead = torch.ones(rows, max(0, keys - start), dtype=torch.bool, device=s.device).triu(1)
    s[..., start:].masked_fill_(ahead, LOW)
    count = torch.arange(start + 1, start + rows + 1, device=s.device).clamp(max=keys).expand(s.shape[:3])
    largest = s.amax(-1)
    if soft_cap is None and view.bias is None:
        return _summed(s, spare, count, largest, largest)
    if soft_cap is not None:
        s.div_(soft_cap).tanh_().mul_(soft_cap)
    if view.bias is not None:
        s.add_(_part(view.bias, start, start + rows, keys))
    s[..., start:].masked_fill_(ahead, LOW)
    return _summed(s, spare, count, largest, s.amax(-1))


def _summed(s: Tensor, spare: Tensor, count: Tensor, largest: Tensor, top: Tensor) -> _Sums:
    """The sums over the keys of a chunk whose hidden logits are ``LOW``; ``s`` and ``spare`` are overwritten."""
    s.sub_(top[..., None])
    p = torch.exp(s, out=spare)
    total = p.sum(-1)
    return count, largest, top, total, torch.linalg.vecdot(p, s)


def _rows(q: Tensor, k: Tensor, scale: float, view: Visibility, soft_cap: float | None) -> _Rows:
    batch, heads, queries, d = q.shape
    kv_heads, keys = k.shape[1:3]
    group = heads // kv_heads
    q = (q * scale).reshape(batch * kv_heads, group, queries, d)
    kt = k.reshape(batch * kv_heads, keys, d).transpose(1, 2)
    parts, step = [], _chunk_rows(keys)
    work = q.new_empty(2, batch * heads * min(step, queries) * keys)  # a fresh one each chunk costs a tenth of the time
    for start in range(0, queries, step):
        stop = min(start + step, queries)
        reach = min(keys, stop) if view.causal else keys
        shape = (batch, heads, stop - start, reach)
        s, spare = (buffer[: math.prod(shape)].view(shape) for buffer in work)
        torch.bmm(q[:, :, start:stop].reshape(batch * kv_heads, -1, d), kt[:, :, :reach], out=s.view(batch * kv_heads, -1, reach))
        parts.append(_reduce(s, spare, view, start, soft_cap))
    count, largest, top, total, weighted = (torch.cat(columns, -1) for columns in zip(*parts, strict=True))
    log = total.log()
    return _Rows(count, largest, top + log, log - weighted / total)


def _norms(x: Tensor) -> Float[Tensor, "batch head position"]:
    norms: Tensor = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)
    return norms


def _total(x: Tensor, where: Tensor) -> Float[Tensor, " head"]:
    return torch.where(where, x.double(), 0.0).sum((0, 2))


def _used(rows: _Rows, padding: Tensor | None) -> Bool[Tensor, "batch head query"]:
    used = rows.count > 0
    return used if padding is None else used & ~padding


def _query_rows(rows: _Rows, query_norms: Tensor, padding: Tensor | None) -> Float[Tensor, "head field"]:
    masked = (rows.count == 0).sum((0, 2)).double()
    used = _used(rows, padding)
    many = used & (rows.count > 1)

    ratio = rows.entropy.double() / rows.count.clamp(min=2).double().log()
    largest = torch.where(used, rows.largest.double(), -torch.inf).amax((0, 2))
    sums = (_total(x, w) for x, w in ((rows.entropy, used), (ratio, many), (rows.lse, used), (query_norms, used)))
    return torch.stack((used.sum((0, 2)).double(), many.sum((0, 2)).double(), largest, *sums, masked), -1)


def reduced_rows(
    q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch kv_head key d_head"], scale: float, view: Visibility, soft_cap: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Visible keys, largest logit, log-sum-exp and entropy of each row in plain PyTorch, shape (batch, head, query).

    A row without a visible key has the log-sum-exp -inf and the entropy 0.
    """
    exact = torch.float64 if q.dtype is torch.float64 else torch.float32
    rows = _rows(q.to(exact), k.to(exact), scale, view, soft_cap)
    none = rows.count == 0
    low = rows.lse.new_full((), -torch.inf)
    return rows.count, torch.where(none, low, rows.largest), torch.where(none, low, rows.lse), rows.entropy.masked_fill(none, 0)


def _found(
    q: Tensor, k: Tensor, scale: float, view: Visibility, soft_cap: float | None, query_norms: Tensor, key_norms: Tensor
) -> _Rows:
    """By the Triton kernel on a GPU; elsewhere chunk by chunk, on the CPU in fp64 where the norms allow logits that need it."""
    if uses_triton(q, k) and view.modify is None:
        from stabilitylens.kernels._gpu.attention_launch import launch

        i = torch.arange(q.shape[2], dtype=torch.int32, device=q.device)
        hi = (i + 1).clamp(max=k.shape[2]) if view.causal else torch.full_like(i, k.shape[2])
        count, largest, lse, entropy = launch(q, k, torch.zeros_like(i), hi, scale, view.visible, view.bias, soft_cap)
        return _Rows(count, largest, lse, entropy)
    bound = abs(scale) * query_norms.amax() * key_norms.amax() if q.numel() and k.numel() else query_norms.new_zeros(())
    large = bound.device.type == "cpu" and bool(bound > FP64_ABOVE)
    exact = torch.float64 if large or q.dtype is torch.float64 else torch.float32
    return _rows(q.to(exact), k.to(exact), scale, view, soft_cap)


def attention_statistics(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_value"] | None,
    *,
    scale: float,
    view: Visibility,
    soft_cap: float | None = None,
) -> tuple[Float[Tensor, "head field"], Float[Tensor, "kv_head kv_field"]]:
    """The fields of ``AttentionMoments`` per head and of ``KeyValueMoments`` per key/value head; see :func:`attention_rows`."""
    rows = attention_rows(q, k, v, scale=scale, view=view, soft_cap=soft_cap)
    return rows["attention"], rows["key_value"]


def attention_rows(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_value"] | None,
    *,
    scale: float,
    view: Visibility,
    soft_cap: float | None = None,
    projections: tuple[Tensor | None, Tensor | None] = (None, None),
    capped: bool = False,
) -> dict[str, Float[Tensor, "head_or_kv_head field"]]:
    """Rows of the taps ``attention``, ``key_value`` and, where given, ``query_proj``, ``key_proj``, ``soft_cap``; fp64.

    A position that no query sees is padding: in self-attention its own query row is left out too.

    Args:
        q: as it enters the dot product, in any dtype; ``head`` is a multiple of ``kv_head``.
        k: likewise.
        v: the values, None where they are not known.
        scale: multiplies q·k.
        view: mask, bias and causality.
        soft_cap: c of c·tanh(s/c) applied to the scaled logits.
        projections: what the projections of q and k had made of the same rows, None where it is not known.
        capped: the logits are bounded, be it by ``soft_cap`` or within the bias.
    """
    query_made, key_made = (None if x is None else x.detach() for x in projections)
    same_query, same_key = projections[0] is q, projections[1] is k
    q, k = q.detach(), k.detach()
    query_norms, key_norms = _norms(q), _norms(k)
    rows = _found(q, k, scale, view, soft_cap, query_norms, key_norms)
    seen = _seen(view, q, k)
    padding = None if q.shape[2] != k.shape[2] or view.visible is None else ~seen[:, :, 0]
    fields = _query_rows(rows, query_norms, padding)
    kv_seen = seen[:, :: max(1, seen.shape[1] // k.shape[1])] if seen.shape[1] > 1 else seen
    kv_seen = kv_seen[:, :, 0].expand(key_norms.shape)
    value_norms = torch.full_like(key_norms, torch.nan) if v is None else _norms(v)
    kv = torch.stack([_total(x, kv_seen) for x in (torch.ones_like(key_norms), key_norms, value_norms)], -1)
    out = {"attention": fields, "key_value": kv}
    if query_made is not None:
        made = fields[:, 6] if same_query else _total(_norms(query_made), _used(rows, padding))
        out["query_proj"] = torch.stack((fields[:, 0], made), -1)
    if key_made is not None:
        out["key_proj"] = torch.stack((kv[:, 0], kv[:, 1] if same_key else _total(_norms(key_made), kv_seen)), -1)
    if capped or soft_cap is not None:
        out["soft_cap"] = fields[:, 2:3]
    return out
