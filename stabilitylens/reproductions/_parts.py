"""The sub-layers of the reference Transformer: attention, feed-forward, mixture of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from stabilitylens.norms import QKNorm, SoftCap
from stabilitylens.reproductions._choices import Choices

Stream = Float[Tensor, "batch position d_model"]
Heads = Float[Tensor, "batch head position d_head"]


class Attention(nn.Module):
    """Self-attention; several query heads may share a key-value head."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.causal, self.d_head = choices.kind == "decoder", choices.d_head
        self.scale = (choices.d_head * choices.times_base) ** -0.5  # 1/√d, and in muP 1/d from the base on
        kv_width = choices.d_head * (choices.kv_heads or choices.heads)
        self.q = nn.Linear(choices.width, choices.width, bias=choices.bias)
        self.k = nn.Linear(choices.width, kv_width, bias=choices.bias)
        self.v = nn.Linear(choices.width, kv_width, bias=choices.bias)
        self.out = nn.Linear(choices.width, choices.width, bias=choices.bias)
        self.qk_norm = QKNorm(choices.d_head) if choices.qk_norm else None
        self.cap = SoftCap(choices.soft_cap) if choices.soft_cap is not None else None

    def _heads(self, x: Stream) -> Heads:
        out: Heads = x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)
        return out

    def _capped(self, q: Heads, k: Heads, v: Heads, cap: SoftCap) -> Heads:
        """Attention with bounded logits, spelled out, for PyTorch's own has no cap."""
        shared = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        logits = cap(q @ k.transpose(-1, -2) * self.scale)
        if self.causal:
            future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            logits = logits.masked_fill(future, float("-inf"))
        out: Tensor = logits.softmax(-1) @ v
        return out

    def forward(self, x: Stream) -> Stream:
        """Mix positions."""
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        if self.qk_norm is not None:
            q, k = self.qk_norm(q, k)
        if self.cap is not None:
            mixed = self._capped(q, k, v, self.cap)
        else:
            shared = q.shape[1] != k.shape[1]
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale, enable_gqa=shared)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between them."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.w1 = nn.Linear(choices.width, 4 * choices.width, bias=choices.bias)
        self.w2 = nn.Linear(4 * choices.width, choices.width, bias=choices.bias)

    def forward(self, x: Float[Tensor, "*token d_model"]) -> Float[Tensor, "*token d_model"]:
        """Transform each token."""
        out: Tensor = self.w2(F.gelu(self.w1(x)))
        return out


class Experts(nn.Module):
    """A router gives each token one of several feed-forward networks: Fedus et al. 2021, https://arxiv.org/abs/2101.03961."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.router = nn.Linear(choices.width, choices.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(choices) for _ in range(choices.experts))

    def forward(self, x: Stream) -> Stream:
        """Transform each token by its expert, weighted by the router's probability."""
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).max(-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero().squeeze(-1)
            out = out.index_add(0, mine, (weights[mine, None] * expert(tokens[mine])).to(out.dtype))
        return out.view_as(x)
