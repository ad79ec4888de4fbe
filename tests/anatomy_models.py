"""Decoders written by hand, with every placement and every way of attention that anatomy tells apart."""

import math

import torch
import torch.nn.functional as F
from torch import nn

D, HEADS, VOCABULARY = 16, 2, 32
WIDTH = D // HEADS
EXAMPLE = torch.zeros(2, 6, D)


class Rms(nn.Module):
    """RMSNorm spelled out."""

    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g


class Unit(nn.Module):
    def __init__(self, d):
        super().__init__()

    def forward(self, x):
        return F.normalize(x, dim=-1)


class Saturating(nn.Module):
    """DyT (tanh) or Derf (erf)."""

    def __init__(self, d, function=torch.tanh):
        super().__init__()
        self.a, self.g = nn.Parameter(torch.tensor([0.5])), nn.Parameter(torch.ones(d))
        self.b = nn.Parameter(torch.zeros(d))
        self.function = function

    def forward(self, x):
        return self.function(self.a * x) * self.g + self.b


def rotate(x):
    """A rotary embedding."""
    angle = torch.arange(x.shape[-2])[:, None] / torch.arange(1, x.shape[-1] // 2 + 1)
    cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    def __init__(self, qk="none", rope="none", fused=False, cap=None, norm=Rms, latent=False):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(D, 6), norm(6), nn.Linear(6, D)) if latent else nn.Linear(D, D)
        self.kv, self.o = nn.Linear(D, 2 * D), nn.Linear(D, D)
        width = D if qk == "full" else WIDTH
        self.nq, self.nk = (norm(width), norm(width)) if qk != "none" else (nn.Identity(), nn.Identity())
        self.full, self.rope, self.fused, self.cap = qk == "full", rope, fused, cap

    def forward(self, x, memory=None):
        q, (k, v) = self.q(x), self.kv(x if memory is None else memory).chunk(2, -1)
        if self.full:
            q, k = self.nq(q), self.nk(k)
        q, k, v = (t.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for t in (q, k, v))
        if self.rope == "before":
            q, k = rotate(q), rotate(k)
        if not self.full:
            q, k = self.nq(q), self.nk(k)
        if self.rope == "after":
            q, k = rotate(q), rotate(k)
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q, k, v):
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def mlp():
    return nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))


class Block(nn.Module):
    def __init__(self, placement, norm=Rms, **attention):
        super().__init__()
        self.attention, self.mlp, self.placement = Attention(norm=norm, **attention), mlp(), placement
        self.before = nn.ModuleList([norm(D), norm(D)])
        self.after = nn.ModuleList([norm(D), norm(D)])

    def forward(self, x):
        if self.placement == "parallel":
            inner = self.before[0](x)
            return x + self.attention(inner) + self.mlp(inner)
        for i, branch in enumerate((self.attention, self.mlp)):
            inner = branch(self.before[i](x) if self.placement in ("pre", "peri") else x)
            x = x + (self.after[i](inner) if self.placement in ("peri", "output") else inner)
            x = self.after[i](x) if self.placement == "post" else x
        return x


class Decoder(nn.Module):
    def __init__(self, placements, final=True, norm=Rms, **attention):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, D), nn.Parameter(torch.randn(16, D))
        self.blocks = nn.ModuleList([Block(p, norm, **attention) for p in placements])
        self.final = norm(D) if final else nn.Identity()
        self.head = nn.Linear(D, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))
