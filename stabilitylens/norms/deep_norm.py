"""DeepNorm: Post-LN with a scaled stream and scaled initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.errors import BadInput
from stabilitylens.norms._residual import MakeNorm, Residual, placement


@dataclass(frozen=True)
class DeepNormScales:
    """What multiplies the stream (α) and the gain of the initial weights (β)."""

    alpha: float
    beta: float


def deep_norm_scales(layers: int, other_layers: int | None = None, decoder: bool = True) -> DeepNormScales:
    r"""α and β for a depth, table of section 4 in Wang et al. 2022, https://arxiv.org/abs/2203.00555.

    Encoder-only and decoder-only: $\alpha = (2L)^{1/4}$, $\beta = (8L)^{-1/4}$. With both, the decoder of M layers
    has $(3M)^{1/4}$ and $(12M)^{-1/4}$, the encoder of N layers $0.81 (N^4 M)^{1/16}$ and $0.87 (N^4 M)^{-1/16}$.

    Args:
        layers: layers (of two sub-layers each) of the stack.
        other_layers: layers of the other stack in an encoder-decoder, None where there is none.
        decoder: whether ``layers`` are the decoder's, where there are both.

    Raises:
        BadInput: a number of layers is below 1.
    """
    if layers < 1 or (other_layers is not None and other_layers < 1):
        raise BadInput(f"DeepNorm needs at least one layer, not {layers if layers < 1 else other_layers}")
    if other_layers is None:
        return DeepNormScales((2 * layers) ** 0.25, (8 * layers) ** -0.25)
    if decoder:
        return DeepNormScales((3 * layers) ** 0.25, (12 * layers) ** -0.25)
    both = layers**4 * other_layers
    return DeepNormScales(0.81 * both ** (1 / 16), 0.87 * both ** (-1 / 16))


@torch.no_grad()
def deep_norm_init_(weight: Float[Tensor, "out in"], beta: float = 1.0) -> None:
    """Xavier initialisation with gain β: for feed-forward, value and output weights; queries and keys take β = 1."""
    nn.init.xavier_normal_(weight, gain=beta)


@placement("deep")
class DeepNorm(Residual):
    r"""Post-norm with a larger stream.

    Formula: $x \mapsto N(\alpha x + F(x))$.
    Source: Wang et al. 2022, https://arxiv.org/abs/2203.00555.
    Defaults: none; α is that of :func:`deep_norm_scales`.
    Known failure: α without :func:`deep_norm_init_` and its β is half of the scheme; both belong to one depth.

    Args:
        alpha: α.
    """

    def __init__(self, branch: nn.Module, norm: MakeNorm, alpha: float) -> None:
        super().__init__(branch)
        self.alpha, self.norm = alpha, norm()

    def forward(self, x: Float[Tensor, "*row d"], *args: Any, **kwargs: Any) -> Float[Tensor, "*row d"]:
        """Run the sub-layer."""
        out: Tensor = self.norm(self.alpha * x + self.branch(x, *args, **kwargs))
        return out
