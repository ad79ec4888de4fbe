"""BatchNorm over sequences, with padding left out."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.kernels.rms_norm import wide
from stabilitylens.norms._norm import checked, finite_padding, norm, token_mask, width


@norm("batch_norm")
class BatchNorm(nn.Module):
    r"""Normalises each feature over all real tokens of a batch.

    Formula: $y = w \odot (x - \mu_B) / \sqrt{\sigma_B^2 + \varepsilon} + b$; in evaluation with running averages of
    $\mu_B$ and of the unbiased variance.
    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.
    Defaults: ε = 1e-5, momentum 0.1, as in PyTorch.
    Known failure: in a causal model a token sees later ones, and other sequences, through the moments; with few
    tokens the running averages are not what training saw. Padding that is not masked pulls every moment to it.
    Where a forward is computed again for its backward (checkpointing), the running averages move twice a step, as those
    of PyTorch's own BatchNorm do.

    Args:
        d: size of the last axis.
        eps: added under the root.
        momentum: share of a batch in the running averages.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, d: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.d, self.eps, self.momentum = width(d), eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.register_buffer("running_mean", torch.zeros(d))
        self.register_buffer("running_var", torch.ones(d))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def _of_tokens(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens = h.flatten(0, -2)
        mean = tokens.mean(0)
        return mean, (tokens - mean).square().mean(0), torch.tensor(len(tokens), device=h.device)

    def _of_real(self, h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Moments of the real tokens; without any, the running averages."""
        real, rows, count = mask[..., None], tuple(range(h.dim() - 1)), mask.sum()
        mean = torch.where(real, h, 0.0).sum(rows) / count.clamp(min=1)
        variance = torch.where(real, h - mean, 0.0).square().sum(rows) / count.clamp(min=1)
        averages = self.running_mean.to(h.dtype), self.running_var.to(h.dtype)
        return torch.where(count > 0, mean, averages[0]), torch.where(count > 0, variance, averages[1]), count

    @torch.no_grad()
    def _move(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        moved = self.momentum * (count > 0).to(self.running_mean.dtype)
        unbiased = variance * (count / (count - 1).clamp(min=1)).to(variance.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), moved)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), moved)
        self.num_batches_tracked.add_(count > 0)

    def forward(
        self, x: Float[Tensor, "*row d"], mask: Bool[Tensor, "*row"] | None = None
    ) -> Float[Tensor, "*row d"]:
        """Normalise; ``mask`` is True at real tokens.

        Padding is normalised too, but moves no moment; NaN and infinity there count as 0.

        Raises:
            BadInput: the input is not of this width or has no axis of tokens, or the mask is not of the tokens' shape.
        """
        h = wide(checked(x, self.d))
        if h.dim() < 2:
            raise BadInput("BatchNorm needs an axis of tokens before that of features")
        if mask is not None:
            h = finite_padding(h, token_mask(mask, h.shape[:-1]))
        if self.training and h.numel() > 0:
            mean, variance, count = self._of_tokens(h) if mask is None else self._of_real(h, mask)
            self._move(mean, variance, count)
        else:
            mean, variance = self.running_mean.to(h.dtype), self.running_var.to(h.dtype)
        h = (h - mean) * torch.rsqrt(variance + self.eps)
        return (h * wide(self.weight) + wide(self.bias)).to(x.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """From before batches were counted, too."""
        state_dict.setdefault(f"{prefix}num_batches_tracked", self.num_batches_tracked)
        super()._load_from_state_dict(state_dict, prefix, *rest)
