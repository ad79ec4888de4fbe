"""QK-Norm: queries and keys are normalised before their dot product."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.kernels.qk_norm import qk_norm
from stabilitylens.kernels.rms_norm import Rounding
from stabilitylens.norms._norm import checked, chosen, rounding_mode, width

Over = Literal["head", "full"]


def _flat(x: Float[Tensor, "batch head position d_head"]) -> Float[Tensor, "batch position d"]:
    return x.transpose(1, 2).flatten(2)


def _heads(x: Tensor, shape: torch.Size) -> Float[Tensor, "batch head position d_head"]:
    out: Tensor = x.unflatten(-1, (shape[1], shape[3])).transpose(1, 2)
    return out


class QKNorm(nn.Module):
    r"""RMSNorm on q and on k, so that no logit can exceed what the gains allow.

    Formula: per head $\hat q = w_q \odot q / \sqrt{\overline{q^2} + \varepsilon}$, and k likewise; then
    $|\hat q \cdot \hat k| \le d_{head} \max|w_q| \max|w_k|$. ``full`` takes the mean square over all heads together.
    Source: Henry et al. 2020, https://arxiv.org/abs/2010.04245 (with an L2 norm); Dehghani et al. 2023,
    https://arxiv.org/abs/2302.05442; RMSNorm per head in Qwen 3 and Gemma 3, over all heads in OLMo 2.
    Defaults: per head, ε = 1e-6, w = 1, before RoPE, which keeps lengths.
    Known failure: with the softmax scale at 1 logits reach d_head at once; keep 1/√d_head. ``full`` bounds the sum
    over heads, not each head, and can't be split over tensor-parallel ranks without a reduction.

    Args:
        d_head: width of a head.
        over: ``head`` or ``full``.
        heads, kv_heads: numbers of heads; needed for ``full``.
        eps: added under the root.
        rounding: as in :class:`~stabilitylens.norms.RMSNorm`.
    """

    def __init__(
        self,
        d_head: int,
        over: Over = "head",
        heads: int | None = None,
        kv_heads: int | None = None,
        eps: float = 1e-6,
        rounding: Rounding = "llama",
    ) -> None:
        super().__init__()
        chosen(over, Over, "over=")
        rounding_mode(rounding)
        if over == "full" and heads is None:
            raise BadInput("QKNorm over all heads needs their number: pass heads=, and kv_heads= where it differs")
        self.d_head, self.over, self.eps, self.rounding = width(d_head), over, eps, rounding
        widths = (d_head, d_head) if over == "head" else (d_head * (heads or 1), d_head * (kv_heads or heads or 1))
        start = torch.zeros if rounding == "gemma" else torch.ones
        self.q_weight, self.k_weight = (nn.Parameter(start(width)) for width in widths)

    def forward(
        self, q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch kv_head key d_head"]
    ) -> tuple[Float[Tensor, "batch head query d_head"], Float[Tensor, "batch kv_head key d_head"]]:
        """Normalise queries and keys."""
        checked(q, self.d_head)
        checked(k, self.d_head)
        if self.over == "head":
            return qk_norm(q, k, self.q_weight, self.k_weight, self.eps, self.rounding)
        flat = checked(_flat(q), len(self.q_weight)), checked(_flat(k), len(self.k_weight))
        a, b = qk_norm(*flat, self.q_weight, self.k_weight, self.eps, self.rounding)
        return _heads(a, q.shape), _heads(b, k.shape)
