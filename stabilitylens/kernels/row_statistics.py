"""Attention row by row, without S x S: visible keys, largest and mean logit, log-sum-exp and entropy.

Which keys a row sees is a span [lo, hi) of its own: causal attention, sliding windows, packed sequences of
different lengths and any subset of queries are all spans. A mask, a bias and a soft cap come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stabilitylens.errors import BadInput
from stabilitylens.kernels._choice import uses_triton
from stabilitylens.kernels.attention_statistics import Visibility, reduced_rows


@dataclass(frozen=True)
class Spans:
    """The keys from ``lo`` up to but without ``hi`` that each query row sees, int32."""

    lo: Int[Tensor, " query"]
    hi: Int[Tensor, " query"]

    def rows(self, index: Int[Tensor, " row"]) -> Spans:
        """Those of a subset of the query rows."""
        return Spans(self.lo[index], self.hi[index])


def spans(
    queries: int, keys: int, *, causal: bool = False, window: int | None = None, device: torch.device | str = "cpu"
) -> Spans:
    """Of one sequence.

    Args:
        queries: how many.
        keys: how many.
        device: where the spans are to lie.
        causal: query i sees keys up to i (aligned top left, as torch does).
        window: with ``causal``, only the last so many of them; without, so many to either side and its own.
    """
    i = torch.arange(queries, dtype=torch.int32, device=device)
    lo, hi = torch.zeros_like(i), torch.full_like(i, keys)
    if causal:
        hi = (i + 1).clamp(max=keys)
    if window is not None:
        lo = (i + 1 - window if causal else i - window).clamp(min=0)
        hi = hi if causal else (i + window + 1).clamp(max=keys)
    return Spans(lo, hi)


def packed_spans(starts: Int[Tensor, " sequence_and_end"], *, causal: bool = False, window: int | None = None) -> Spans:
    """Of sequences packed one after the other: sequence j holds positions starts[j] up to starts[j + 1]."""
    lengths = starts.diff()
    own = torch.repeat_interleave(torch.arange(len(lengths), device=starts.device), lengths)
    begin, end = starts[:-1][own].int(), starts[1:][own].int()
    inner = spans(len(own), len(own), causal=causal, window=window, device=starts.device)
    return Spans(torch.maximum(begin, inner.lo), torch.minimum(end, inner.hi))


@dataclass(frozen=True)
class RowStatistics:
    """Per query row; a row that sees no key has a log-sum-exp of -inf, an entropy of 0 and no mean.

    Attributes:
        count: visible keys.
        largest: largest q·k·scale, before cap and bias.
        lse: log-sum-exp of the logits as they enter the softmax, in nat.
        entropy: of the softmax, in nat.
        mean: mean q·k·scale over the span, NaN where a mask hides keys of it.
    """

    count: Int[Tensor, "batch head query"]
    largest: Float[Tensor, "batch head query"]
    lse: Float[Tensor, "batch head query"]
    entropy: Float[Tensor, "batch head query"]
    mean: Float[Tensor, "batch head query"]


def _mean(q: Tensor, k: Tensor, scale: float, seen: Spans) -> Float[Tensor, "batch head query"]:
    """From prefix sums of the keys: no product of all queries with all keys."""
    sums = torch.nn.functional.pad(k.double().cumsum(2), (0, 0, 1, 0))
    lo, hi = seen.lo.long(), torch.maximum(seen.lo, seen.hi).long()
    mean = (sums[:, :, hi] - sums[:, :, lo]) / (hi - lo)[:, None]
    mean = mean.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return (scale * (q.double() * mean).sum(-1)).float()


def row_statistics(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    *,
    scale: float,
    seen: Spans | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    soft_cap: float | None = None,
) -> RowStatistics:
    """Statistics of each query row of an attention call.

    Args:
        q: as it enters the dot product; ``head`` is a multiple of ``kv_head``.
        k: likewise.
        scale: multiplies q·k.
        seen: the span of each query row, None for all keys; for a subset of the queries pass those rows of q and of the spans.
        mask: True where a key is visible, broadcastable to (batch, head, query, key), on top of the spans.
        bias: added to the logits, broadcastable likewise.
        soft_cap: c of c·tanh(s/c), before the bias.

    Raises:
        BadInput: the number of heads is no multiple of that of k, or the spans are of another number of queries.
    """
    if q.shape[1] % k.shape[1]:
        raise BadInput(f"{q.shape[1]} query heads can't share {k.shape[1]} key heads; the first must be a multiple of the second")
    seen = spans(q.shape[2], k.shape[2], device=q.device) if seen is None else seen
    if len(seen.lo) != q.shape[2]:
        raise BadInput(f"there are spans of {len(seen.lo)} queries but {q.shape[2]} queries; pass those rows of both")
    q, k = q.detach(), k.detach()
    if uses_triton(q, k):
        from stabilitylens.kernels._gpu.attention_launch import launch

        found = launch(q, k, seen.lo, seen.hi, scale, mask, bias, soft_cap)
    else:
        keys = torch.arange(k.shape[2], device=q.device)
        inside = ((keys >= seen.lo[:, None]) & (keys < seen.hi[:, None]))[None, None]
        found = reduced_rows(q, k, scale, Visibility(inside if mask is None else inside & mask, bias), soft_cap)
    mean = _mean(q, k, scale, seen) if mask is None else torch.full_like(found[1], torch.nan)
    return RowStatistics(found[0].int(), *found[1:], mean)
