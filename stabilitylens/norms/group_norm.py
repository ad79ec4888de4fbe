"""GroupNorm over sequences, with padding left out."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.kernels.rms_norm import wide
from stabilitylens.norms._norm import checked, finite_padding, norm, token_mask, width


@norm("group_norm")
class GroupNorm(nn.Module):
    r"""Normalises groups of features, over all real positions of a sequence or within each token.

    Formula: $y = w \odot (x - \mu_g) / \sqrt{\sigma_g^2 + \varepsilon} + b$ with the moments of a group g of features.
    Source: Wu and He 2018, https://arxiv.org/abs/1803.08494, there over the positions of an image.
    Defaults: one group of 32 features or fewer, ε = 1e-5, over each token alone, so that no position sees a later one.
    Known failure: with ``per_token=False`` a causal model sees the future through the moments.

    Args:
        d: size of the last axis, a multiple of ``groups``.
        groups: how many groups; None for groups of 32 features where that divides d, else one group.
        eps: added under the root.
        per_token: moments of each token alone, or of all positions of a sequence together.
    """

    def __init__(self, d: int, groups: int | None = None, eps: float = 1e-5, per_token: bool = True) -> None:
        super().__init__()
        self.d = width(d)
        groups = (d // 32 if d % 32 == 0 else 1) if groups is None else groups
        if groups < 1 or d % groups:
            raise BadInput(f"GroupNorm needs a number of groups that divides {d}, not {groups}")
        self.groups, self.eps, self.per_token = groups, eps, per_token
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(
        self, x: Float[Tensor, "*batch position d"], mask: Bool[Tensor, "*batch position"] | None = None
    ) -> Float[Tensor, "*batch position d"]:
        """Normalise; ``mask`` is True at real positions, and matters where moments run over positions.

        NaN and infinity in padding count as 0.

        Raises:
            BadInput: moments are to run over positions, and there is no such axis, or the mask is not of the tokens' shape.
        """
        h = wide(checked(x, self.d))
        if mask is not None:
            h = finite_padding(h, token_mask(mask, h.shape[:-1]))
        h = h.unflatten(-1, (self.groups, -1))
        mean, variance = self._within_tokens(h) if self.per_token else self._over_positions(h, mask)
        h = ((h - mean) * torch.rsqrt(variance + self.eps)).flatten(-2)
        out: Tensor = (h * wide(self.weight) + wide(self.bias)).to(x.dtype)
        return out

    def _within_tokens(self, h: Tensor) -> tuple[Tensor, Tensor]:
        mean = h.mean(-1, keepdim=True)
        return mean, (h - mean).square().mean(-1, keepdim=True)

    def _over_positions(self, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if h.dim() < 3:
            raise BadInput("GroupNorm(per_token=False) needs an axis of positions before that of features")
        mask = h.new_ones(h.shape[:-2], dtype=torch.bool) if mask is None else mask
        real, axes = mask[..., None, None], (-3, -1)
        count = real.sum(axes, keepdim=True).clamp(min=1) * h.shape[-1]
        mean = torch.where(real, h, 0.0).sum(axes, keepdim=True) / count
        return mean, torch.where(real, h - mean, 0.0).square().sum(axes, keepdim=True) / count
