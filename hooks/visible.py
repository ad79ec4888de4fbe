"""What a query sees of the keys, spelled as kernels spell it: windows, alignment, slopes, documents, block masks."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def _offsets(queries: int, keys: int, device: torch.device) -> Tensor:
    """How far each key is ahead of each query where the last of both are aligned."""
    i = torch.arange(queries, device=device)[:, None] + (keys - queries)
    return torch.arange(keys, device=device)[None] - i


def window(
    queries: int, keys: int, *, causal: bool, left: int = -1, right: int = -1, device: torch.device
) -> Bool[Tensor, "1 1 query key"] | None:
    """A sliding window, aligned bottom right as in FlashAttention 2.1 and later.

    Args:
        queries: how many there are.
        keys: likewise.
        causal: no key ahead of its query.
        left: how many keys before its own a query sees, below 0 for all.
        right: how many after it, likewise.
        device: of the mask.
    """
    if not causal and left < 0 and right < 0:
        return None
    ahead = _offsets(queries, keys, device)
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if causal or right >= 0:
        seen &= ahead <= (0 if causal else right)
    if left >= 0:
        seen &= ahead >= -left
    return seen[None, None]


def slopes_bias(slopes: Float[Tensor, "*batch head"], queries: int, keys: int) -> Float[Tensor, "batch head query key"]:
    """ALiBi as FlashAttention adds it: -slope times the distance."""
    distance = _offsets(queries, keys, slopes.device).abs()
    each = slopes.float().reshape(-1, slopes.shape[-1])
    return -each[:, :, None, None] * distance


def of_block_mask(block_mask: Any, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "#batch #head query key"]:
    """A FlexAttention block mask, key by key.

    Raises:
        Exception: whatever its ``mask_mod`` raises.
    """
    from torch.nn.attention.flex_attention import create_mask

    batch, heads = block_mask.kv_num_blocks.shape[:2]
    seen: Tensor = create_mask(block_mask.mask_mod, batch, heads, queries, keys, device=str(device))
    rows, columns = block_mask.BLOCK_SIZE
    blocks = block_mask.to_dense().bool().repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    visible: Tensor = seen & blocks[..., :queries, :keys]
    return visible


def score_mod_on(score_mod: Any) -> Any:
    """A FlexAttention ``score_mod`` as a function of a chunk of raw scores and its first query row."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    function = score_mod
    for axes in ((0, None, None, None, 0), (0, None, None, 0, None), (0, None, 0, None, None), (0, 0, None, None, None)):
        function = torch.vmap(function, in_dims=axes)

    def modify(scores: Tensor, start: int) -> Tensor:
        b, h, q, k = (torch.arange(n, device=scores.device, dtype=torch.int) for n in scores.shape)
        with TransformGetItemToIndex():
            out: Tensor = function(scores, b, h, q + start, k)
        return out

    return modify


def combined(*masks: Tensor | None) -> Tensor | None:
    """What all of them allow."""
    given = [m for m in masks if m is not None]
    if not given:
        return None
    seen = given[0]
    for mask in given[1:]:
        seen = seen & mask
    return seen
