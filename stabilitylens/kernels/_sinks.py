"""What attention sinks take of a softmax: columns beside those of the keys, which go to no value."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens.kernels._attention_chunks import Rows
from stabilitylens.kernels._visibility import HIDDEN


def with_sinks(rows: Rows, sinks: Float[Tensor, "#batch #head #query sink"]) -> Rows:
    r"""Rows over the keys alone as rows of the softmax over keys and sinks.

    Of a softmax over two parts the entropy is what each part has in itself, weighted with its share, and that of the
    shares: with w the keys' share, $H = w H_{keys} - w \ln w - \sum_j p_j \ln p_j$ over the sinks j. No term is negative.

    Args:
        rows: over the keys.
        sinks: the sinks' logits, as the softmax is given them.
    """
    s = sinks.detach().to(rows.lse)
    keys = torch.where(rows.count > 0, rows.lse, -torch.inf)
    lse = torch.logaddexp(keys, s.logsumexp(-1))
    own = (keys - lse).exp()
    entropy = torch.where(own == 0, 0.0, own * (rows.entropy + lse - keys))
    shares = (s - lse[..., None]).exp()
    entropy = entropy + torch.where(shares == 0, 0.0, shares * (lse[..., None] - s)).sum(-1)
    return Rows(rows.count, rows.largest, lse, entropy, (s > HIDDEN).sum(-1).expand(rows.count.shape))
