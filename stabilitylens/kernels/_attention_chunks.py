"""Rows of logits reduced in plain PyTorch, some heads and queries at a time, in two buffers that all of them share.

With the maximum m of a row, l = Σ e^(s-m) and t = Σ e^(s-m) (s-m). Where no logit can be large m is 0. Inside, logits count in
powers of two, s / ln 2: on a CPU PyTorch's exp2 takes a third of the time of its exp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stabilitylens.kernels._visibility import HIDDEN, Visibility

#: bound on |logit| up to which e^s is taken as it is: ln l and t / l are then known to 5e-6
PLAIN_BELOW = 32.0
#: query rows at a time, and from LONG keys on
CHUNK, LONG_CHUNK, LONG = 64, 128, 2048
#: elements of a buffer that a core's cache holds; heads beyond it wait for their turn
CACHED = 1 << 18
#: stands for -inf where exp and products must stay finite
LOW = -1e30


@dataclass
class Rows:
    """Per query row, shape (batch, head, query); ``count`` keys are seen, and ``sinks`` more columns have a share."""

    count: Tensor
    largest: Tensor
    lse: Tensor
    entropy: Tensor
    sinks: Tensor | int = 0


def _part(x: Tensor, start: int, stop: int, keys: int) -> Tensor:
    """Rows ``start`` to ``stop`` and the first ``keys`` columns of a broadcastable mask."""
    x = x[:, :, start:stop] if x.shape[2] > 1 else x
    return x[..., :keys] if x.shape[3] > 1 else x


#: per query row of a chunk: keys seen, largest logit, and in powers of two the maximum m that was taken off, Σ e^(s-m),
#: Σ e^(s-m) (s-m); None where it is what nothing but the order makes of it, or 0
_Sums = tuple[Tensor | None, Tensor, Tensor | None, Tensor, Tensor]


@dataclass(frozen=True)
class _Task:
    """What is done to the logits of some heads.

    Attributes:
        plain: no logit is too large for its exponential.
        ahead: True above the diagonal, shape (rows of a chunk, rows of a chunk).
    """

    view: Visibility
    soft_cap: float | None
    plain: bool
    ahead: Tensor

    @property
    def changes(self) -> bool:
        """Whether the softmax is given something else than the scaled logits, which then do not come in powers of two."""
        return self.soft_cap is not None or self.view.bias is not None or self.view.modify is not None

    def of(self, batches: slice, heads: slice) -> _Task:
        """The same for some batches and heads."""
        visible, bias = (_of_block(x, batches, heads) for x in (self.view.visible, self.view.bias))
        return replace(self, view=replace(self.view, visible=visible, bias=bias))


def _of_block(x: Tensor | None, batches: slice, heads: slice) -> Tensor | None:
    """A broadcastable mask's part for some batches and heads."""
    if x is None:
        return None
    x = x[batches] if x.shape[0] > 1 else x
    return x[:, heads] if x.shape[1] > 1 else x


def _reduce(s: Tensor, spare: Tensor, task: _Task, start: int) -> _Sums:
    """Reduce one chunk of raw logits, shape (batch, head, query, key); ``s`` and ``spare``, of its shape, are overwritten."""
    view, (rows, keys) = task.view, s.shape[2:]
    if view.visible is None and view.modify is None:
        return _reduce_ordered(s, spare, task, start)
    hidden = None if view.visible is None else ~_part(view.visible, start, start + rows, keys)
    if view.causal:
        ahead = torch.ones(rows, keys, dtype=torch.bool, device=s.device).triu(start + 1)
        hidden = ahead if hidden is None else hidden | ahead
    modified = None if view.modify is None else view.modify(s, start)
    if modified is not None:
        hidden = modified <= HIDDEN if hidden is None else hidden | (modified <= HIDDEN)
    assert hidden is not None
    s.masked_fill_(hidden, LOW)
    count, largest = (~hidden).expand(s.shape).sum(-1), s.amax(-1)
    if not task.changes:
        return count, *_summed(s, spare, largest * math.log(2), None if task.plain else largest)
    s = _changed(s, task, start) if modified is None else modified.clone()
    s.div_(math.log(2)).masked_fill_(hidden, LOW)
    return count, *_summed(s, spare, largest, None if task.plain else s.amax(-1))


def _reduce_ordered(s: Tensor, spare: Tensor, task: _Task, start: int) -> _Sums:
    """As :func:`_reduce` where nothing but the order hides: only the columns from ``start`` on are touched."""
    rows, keys = s.shape[2:]
    late = s[..., start:] if task.view.causal and keys > start else None
    if late is not None:
        late.masked_fill_(task.ahead[:rows, : keys - start], LOW)
    largest = s.amax(-1)
    if not task.changes:
        return None, *_summed(s, spare, largest * math.log(2), None if task.plain else largest)
    _changed(s, task, start).div_(math.log(2))
    if late is not None:
        late.masked_fill_(task.ahead[:rows, : keys - start], LOW)
    return None, *_summed(s, spare, largest, None if task.plain else s.amax(-1))


def _changed(s: Tensor, task: _Task, start: int) -> Tensor:
    """What the softmax is given of scaled logits, in their place."""
    if task.soft_cap is not None:
        s.div_(task.soft_cap).tanh_().mul_(task.soft_cap)
    if task.view.bias is not None:
        s.add_(_part(task.view.bias, start, start + s.shape[2], s.shape[3]))
    return s


def _summed(s: Tensor, spare: Tensor, largest: Tensor, top: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The sums over the keys of a chunk whose hidden logits are ``LOW``; ``s`` and ``spare`` are overwritten."""
    if top is not None:
        s.sub_(top[..., None])
    p = torch.exp2(s, out=spare)
    return largest, top, p.sum(-1), s.mul_(p).sum(-1)


def _is_plain(bound: float, view: Visibility, soft_cap: float | None) -> bool:
    """Whether logits of at most ``bound`` need nothing taken off before their exponential."""
    return view.bias is None and view.modify is None and min(bound, soft_cap or bound) <= PLAIN_BELOW


def _blocks(batch: int, kv_heads: int, group: int, chunk: int, view: Visibility) -> Iterator[tuple[slice, slice, slice]]:
    """Batches, their key/value heads and the query heads of these, as many at a time as stay in the cache."""
    fit = max(1, CACHED // max(1, group * chunk)) if view.modify is None else batch * kv_heads
    rows, heads = (max(1, fit // max(1, kv_heads)), kv_heads) if fit >= kv_heads else (1, fit)
    for b in range(0, batch, rows):
        for h in range(0, kv_heads, max(1, heads)):
            yield slice(b, b + rows), slice(h, h + heads), slice(h * group, (h + heads) * group)


def _unmasked(q: Tensor, keys: int, causal: bool) -> list[Tensor]:
    """Where the sums go: the keys that the order lets a query see, a maximum of 0, and three that are yet to be filled."""
    shape, queries = q.shape[:3], q.shape[2]
    count = torch.full((queries,), keys, device=q.device)
    if causal:
        count = torch.arange(1, queries + 1, device=q.device).clamp(max=keys)
    return [count.expand(shape).clone(), q.new_empty(shape), q.new_zeros(shape), q.new_empty(shape), q.new_empty(shape)]


def chunked_rows(q: Tensor, k: Tensor, scale: float, view: Visibility, soft_cap: float | None, bound: float) -> Rows:
    """Reduce all rows; no |logit| exceeds ``bound``, before a bias."""
    kv_heads, keys = k.shape[1:3]
    group = q.shape[1] // max(1, kv_heads)
    rows = LONG_CHUNK if keys >= LONG else CHUNK
    ahead = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
    task = _Task(view, soft_cap, _is_plain(bound, view, soft_cap), ahead)
    q = q * (scale if task.changes else scale / math.log(2))
    out = _unmasked(q, keys, view.causal)
    work: list[Tensor] = []  # fresh buffers for each chunk cost a tenth of the time
    for batches, kv, heads in _blocks(q.shape[0], kv_heads, group, rows * keys, view):
        _fill([x[batches, heads] for x in out], q[batches, heads], k[batches, kv], task.of(batches, heads), work)
    count, largest, top, total, weighted = out
    log = total.log2()
    return Rows(count, largest, (top + log) * math.log(2), (log - weighted / total) * math.log(2))


def _fill(out: list[Tensor], q: Tensor, k: Tensor, task: _Task, work: list[Tensor]) -> None:
    """The sums of some heads, chunk by chunk."""
    batch, heads, queries, d = q.shape
    (kv_heads, keys), rows = k.shape[1:3], len(task.ahead)
    q = q.reshape(batch * kv_heads, heads // kv_heads, queries, d)
    kt = k.reshape(batch * kv_heads, keys, d).transpose(1, 2)
    if not work:
        work += q.new_empty(2, batch * heads * min(rows, queries) * keys)
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        reach = min(keys, stop) if task.view.causal else keys
        shape = (batch, heads, stop - start, reach)
        s, spare = (buffer[: math.prod(shape)].view(shape) for buffer in work)
        torch.bmm(q[:, :, start:stop].reshape(batch * kv_heads, -1, d), kt[:, :, :reach], out=s.view(batch * kv_heads, -1, reach))
        for x, found in zip(out, _reduce(s, spare, task, start), strict=True):
            if found is not None:
                x[:, :, start:stop] = found
