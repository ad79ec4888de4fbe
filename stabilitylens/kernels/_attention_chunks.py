"""Rows of logits reduced in plain PyTorch, some queries at a time, in two buffers that all of them share.

With the maximum m of a row, l = Σ e^(s-m) and t = Σ e^(s-m) (s-m). Where no logit can be large m is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stabilitylens.kernels._visibility import HIDDEN, Visibility

#: bound on |logit| up to which e^s is taken as it is: ln l and t / l are then known to 5e-6
PLAIN_BELOW = 32.0
#: query rows at a time
CHUNK = 64
#: stands for -inf where exp and products must stay finite
LOW = -1e30


@dataclass
class Rows:
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


def _reduce(s: Tensor, spare: Tensor, view: Visibility, start: int, soft_cap: float | None, plain: bool) -> _Sums:
    """Reduce one chunk of raw logits, shape (batch, head, query, key); ``s`` and ``spare``, of its shape, are overwritten.

    ``plain``: no logit, nor what becomes of it, is too large for its exponential.
    """
    rows, keys = s.shape[2:]
    if view.causal and view.visible is None and view.modify is None:
        return _reduce_causal(s, spare, view, start, soft_cap, plain)
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
    top = s.amax(-1) if changed else largest
    return _summed(s, spare, count, largest, None if plain else top)


def _reduce_causal(s: Tensor, spare: Tensor, view: Visibility, start: int, soft_cap: float | None, plain: bool) -> _Sums:
    """As :func:`_reduce` where nothing but the order hides: only the columns from ``start`` on are touched."""
    rows, keys = s.shape[2:]
    ahead = torch.ones(rows, max(0, keys - start), dtype=torch.bool, device=s.device).triu(1)
    s[..., start:].masked_fill_(ahead, LOW)
    count = torch.arange(start + 1, start + rows + 1, device=s.device).clamp(max=keys).expand(s.shape[:3])
    largest = s.amax(-1)
    if soft_cap is None and view.bias is None:
        return _summed(s, spare, count, largest, None if plain else largest)
    if soft_cap is not None:
        s.div_(soft_cap).tanh_().mul_(soft_cap)
    if view.bias is not None:
        s.add_(_part(view.bias, start, start + rows, keys))
    s[..., start:].masked_fill_(ahead, LOW)
    return _summed(s, spare, count, largest, None if plain else s.amax(-1))


def _summed(s: Tensor, spare: Tensor, count: Tensor, largest: Tensor, top: Tensor | None) -> _Sums:
    """The sums over the keys of a chunk whose hidden logits are ``LOW``; ``s`` and ``spare`` are overwritten."""
    if top is None:
        top = torch.zeros_like(largest)
    else:
        s.sub_(top[..., None])
    p = torch.exp(s, out=spare)
    return count, largest, top, p.sum(-1), torch.linalg.vecdot(p, s)


def _is_plain(bound: float, view: Visibility, soft_cap: float | None) -> bool:
    """Whether logits of at most ``bound`` need nothing taken off before their exponential."""
    return view.bias is None and view.modify is None and min(bound, soft_cap or bound) <= PLAIN_BELOW


def chunked_rows(q: Tensor, k: Tensor, scale: float, view: Visibility, soft_cap: float | None, bound: float) -> Rows:
    """Reduce all rows; no |logit| exceeds ``bound``, before a bias."""
    batch, heads, queries, d = q.shape
    kv_heads, keys = k.shape[1:3]
    group = heads // kv_heads
    q = (q * scale).reshape(batch * kv_heads, group, queries, d)
    kt = k.reshape(batch * kv_heads, keys, d).transpose(1, 2)
    plain, parts = _is_plain(bound, view, soft_cap), []
    work = q.new_empty(2, batch * heads * min(CHUNK, queries) * keys)  # a fresh one each chunk costs a tenth of the time
    for start in range(0, queries, CHUNK):
        stop = min(start + CHUNK, queries)
        reach = min(keys, stop) if view.causal else keys
        shape = (batch, heads, stop - start, reach)
        s, spare = (buffer[: math.prod(shape)].view(shape) for buffer in work)
        torch.bmm(q[:, :, start:stop].reshape(batch * kv_heads, -1, d), kt[:, :, :reach], out=s.view(batch * kv_heads, -1, reach))
        parts.append(_reduce(s, spare, view, start, soft_cap, plain))
    count, largest, top, total, weighted = (torch.cat(columns, -1) for columns in zip(*parts, strict=True))
    log = total.log()
    return Rows(count, largest, top + log, log - weighted / total)
