"""From an attention call to its statistics: what hides keys, what is added, and in which precision."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from stabilitylens.hooks.attention_call import Resolved
from stabilitylens.kernels.attention_statistics import HIDDEN, Visibility, attention_rows, may_be


def _cast(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x if dtype is None or x.dtype is torch.float64 else x.to(dtype)


def from_logits(call: Resolved) -> Visibility:
    """What was added to scale·q·k before the softmax, as a mask and a bias; columns beside the keys' are sinks.

    Differences that rounding explains are no bias.
    """
    assert call.logits is not None
    end = call.first_key + call.key.shape[2]
    logits = call.logits[..., call.first_key : end]
    beside = torch.cat((call.logits[..., : call.first_key], call.logits[..., end:]), -1)
    work = torch.float64 if logits.dtype is torch.float64 else torch.float32
    raw = call.scale * (call.query.to(work) @ call.key.to(work).transpose(-1, -2))
    added = logits.to(work) - raw
    visible = added > HIDDEN
    added = torch.where(visible, added, 0)
    rounding = 8 * torch.finfo(logits.dtype).eps * raw.abs().amax()
    return Visibility(
        visible if may_be(~visible.all()) else None,
        added if may_be(added.abs().amax() > rounding) else None,
        sinks=beside if beside.shape[-1] else None,
    )


def statistics(call: Resolved, cast: torch.dtype | None) -> dict[str, Float[Tensor, "row field"]]:
    """Rows by tap: ``attention``, ``key_value`` and, where they are observed, ``query_proj``, ``key_proj``, ``soft_cap``.

    Args:
        call: the call.
        cast: the dtype to which autocast takes q, k and v, None where it is off.
    """
    q, k = _cast(call.query, cast), _cast(call.key, cast)
    v = None if call.value is None else _cast(call.value, cast)
    view = call.view or (Visibility.of(call.mask, call.causal) if call.logits is None else from_logits(call))
    made = (q if call.query_proj is call.query else call.query_proj, k if call.key_proj is call.key else call.key_proj)
    return attention_rows(
        q, k, v, scale=call.scale, view=view, soft_cap=call.soft_cap, projections=made, capped=call.capped, self_attention=call.self_attention,
    )  # fmt: skip
