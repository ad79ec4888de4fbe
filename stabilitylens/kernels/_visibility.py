"""Which keys a query sees, and what is added to logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

#: an additive mask at or below this hides a key: BERT's old -10,000 is the weakest mask in use
HIDDEN = -9e3


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
        sinks: logits that the softmax is given beside those of the keys, and that go to no value (learned sinks), shape
            broadcastable to (batch, head, query, sink), as the softmax is given them.
        modify: makes the softmax's input of a chunk of scaled logits, shape (batch, head, query, key), given it and the
            index of its first query; None where only ``bias`` and a soft-cap do.
    """

    visible: Bool[Tensor, "..."] | None = None
    bias: Float[Tensor, "..."] | None = None
    causal: bool = False
    modify: Callable[[Tensor, int], Tensor] | None = None
    sinks: Float[Tensor, "..."] | None = None

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
