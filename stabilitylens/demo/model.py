"""The Transformer of the demonstration: a small causal decoder over bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Every choice of the model.

    Attributes:
        qk_norm: RMSNorm on q and k, per head, before their product (Henry et al. 2020, https://arxiv.org/abs/2010.04245).
        placement: ``pre``: x + F(N(x)); ``post``: N(x + F(x)).
    """

    depth: int = 4
    width: int = 64
    heads: int = 4
    context: int = 128
    qk_norm: bool = False
    placement: Literal["pre", "post"] = "pre"


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        d_head = shape.width // shape.heads
        self.q_norm = nn.RMSNorm(d_head) if shape.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(d_head) if shape.qk_norm else nn.Identity()

    def forward(self, x: Float[Tensor, "batch query d_model"]) -> Float[Tensor, "batch query d_model"]:
        """Mix positions."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention and a feed-forward network, each on the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.post = shape.placement == "post"
        self.norm1, self.attention = nn.LayerNorm(shape.width), Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: Float[Tensor, "batch query d_model"]) -> Float[Tensor, "batch query d_model"]:
        """One layer."""
        if self.post:
            x = self.norm1(x + self.attention(x))
            x = self.norm2(x + self.feed_forward(x))
        else:
            x = x + self.attention(self.norm1(x))
            x = x + self.feed_forward(self.norm2(x))
        return x


class Decoder(nn.Module):
    """A language model over bytes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, shape.width)
        self.positions = nn.Parameter(0.02 * torch.randn(shape.context, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width) if shape.placement == "pre" else nn.Identity()
        self.head = nn.Linear(shape.width, 256, bias=False)

    def forward(self, text: Int[Tensor, "batch query"]) -> Float[Tensor, "batch query byte"]:
        """Logits of the next byte."""
        x = self.tokens(text) + self.positions[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
