"""Entropy, log-sum-exp and largest logit of attention, exact under its mask, without keeping S x S.

A row of logits s is reduced with its maximum m to l = Σ e^(s-m) and t = Σ e^(s-m) (s-m). Then
lse = m + ln l and the entropy is H = ln l - t / l, a difference of two non-negative terms, so that
nothing cancels. Rows go in chunks; where logits may exceed ``FP64_ABOVE`` the chunk is done in fp64,
since an fp32 logit of 1e4 is only known to 6e-4.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stabilitylens.kernels._attention_chunks import Rows, chunked_rows
from stabilitylens.kernels._choice import uses_triton
from stabilitylens.kernels._sinks import with_sinks
from stabilitylens.kernels._visibility import HIDDEN, Visibility, may_be

__all__ = ["HIDDEN", "Visibility", "attention_rows", "attention_statistics", "may_be", "reduced_rows"]

#: bound on |logit| above which fp32 no longer gives the entropy to 1e-4 nat
FP64_ABOVE = 1e3


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


def _norms(x: Tensor) -> Float[Tensor, "batch head position"]:
    norms: Tensor = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.float64 if x.dtype is torch.float64 else torch.float32)
    return norms


def _bound(scale: float, query_norms: Tensor, key_norms: Tensor) -> float:
    """What no |logit| exceeds; infinite on other devices than the CPU, where looking would wait for them."""
    if query_norms.device.type != "cpu":
        return math.inf
    return float(abs(scale) * query_norms.amax() * key_norms.amax()) if query_norms.numel() and key_norms.numel() else 0.0


def _total(x: Tensor, where: Tensor) -> Float[Tensor, " head"]:
    return torch.where(where, x.double(), 0.0).sum((0, 2))


def _used(rows: Rows, padding: Tensor | None) -> Bool[Tensor, "batch head query"]:
    used = rows.count > 0
    return used if padding is None else used & ~padding


def _query_rows(rows: Rows, query_norms: Tensor, padding: Tensor | None) -> Float[Tensor, "head field"]:
    outcomes = rows.count + rows.sinks
    masked = (outcomes == 0).sum((0, 2)).double()
    used = _used(rows, padding)
    many = used & (outcomes > 1)

    ratio = rows.entropy.double() / outcomes.clamp(min=2).double().log()
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
    rows = chunked_rows(q.to(exact), k.to(exact), scale, view, soft_cap, _bound(scale, _norms(q), _norms(k)))
    none = rows.count == 0
    low = rows.lse.new_full((), -torch.inf)
    return rows.count, torch.where(none, low, rows.largest), torch.where(none, low, rows.lse), rows.entropy.masked_fill(none, 0)


def _found(
    q: Tensor, k: Tensor, scale: float, view: Visibility, soft_cap: float | None, query_norms: Tensor, key_norms: Tensor
) -> Rows:
    """By the Triton kernel on a GPU; elsewhere chunk by chunk, on the CPU in fp64 where the norms allow logits that need it."""
    if uses_triton(q, k) and view.modify is None:
        from stabilitylens.kernels._gpu.attention_launch import launch

        i = torch.arange(q.shape[2], dtype=torch.int32, device=q.device)
        hi = (i + 1).clamp(max=k.shape[2]) if view.causal else torch.full_like(i, k.shape[2])
        count, largest, lse, entropy = launch(q, k, torch.zeros_like(i), hi, scale, view.visible, view.bias, soft_cap)
        return Rows(count, largest, lse, entropy)
    bound = _bound(scale, query_norms, key_norms)
    large = q.device.type == "cpu" and bound > FP64_ABOVE
    exact = torch.float64 if large or q.dtype is torch.float64 else torch.float32
    return chunked_rows(q.to(exact), k.to(exact), scale, view, soft_cap, bound)


def attention_statistics(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_value"] | None,
    *,
    scale: float,
    view: Visibility,
    soft_cap: float | None = None,
    self_attention: bool = False,
) -> tuple[Float[Tensor, "head field"], Float[Tensor, "kv_head kv_field"]]:
    """The fields of ``AttentionMoments`` per head and of ``KeyValueMoments`` per key/value head; see :func:`attention_rows`."""
    rows = attention_rows(q, k, v, scale=scale, view=view, soft_cap=soft_cap, self_attention=self_attention)
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
    self_attention: bool = False,
) -> dict[str, Float[Tensor, "head_or_kv_head field"]]:
    """Rows of the taps ``attention``, ``key_value`` and, where given, ``query_proj``, ``key_proj``, ``soft_cap``; fp64.

    A position that no query sees is padding: in self-attention its own query row is left out too. Sinks are outcomes of
    the softmax beside the keys: in log-sum-exp, entropy and the largest entropy that there can be.

    Args:
        q: as it enters the dot product, in any dtype; ``head`` is a multiple of ``kv_head``.
        k: likewise.
        v: the values, None where they are not known.
        scale: multiplies q·k.
        view: mask, bias, causality and sinks.
        soft_cap: c of c·tanh(s/c) applied to the scaled logits.
        projections: what the projections of q and k had made of the same rows, None where it is not known.
        capped: the logits are bounded, be it by ``soft_cap`` or within the bias.
        self_attention: query i and key i are known to be of the same position; equal lengths do not tell.
    """
    query_made, key_made = (None if x is None else x.detach() for x in projections)
    same_query, same_key = projections[0] is q, projections[1] is k
    q, k = q.detach(), k.detach()
    query_norms, key_norms = _norms(q), _norms(k)
    rows = _found(q, k, scale, view, soft_cap, query_norms, key_norms)
    if view.sinks is not None:
        rows = with_sinks(rows, view.sinks)
    seen = _seen(view, q, k)
    padding = ~seen[:, :, 0] if self_attention and view.visible is not None else None
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
