"""Transformers as people write them outside the large libraries, each small."""

import math

import torch
import torch.nn.functional as F
from torch import nn

D, HEADS, VOCABULARY, DEPTH = 32, 4, 64, 4
WIDTH = D // HEADS


class Rms(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g


class Bounded(nn.Module):
    """DyT and Derf."""

    def __init__(self, d, function=torch.tanh, alpha=0.5):
        super().__init__()
        self.alpha, self.shift = nn.Parameter(torch.tensor(alpha)), nn.Parameter(torch.tensor(0.1))
        self.g, self.b, self.function = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d)), function

    def forward(self, x):
        moved = self.alpha * x + (self.shift if self.function is torch.erf else 0)
        return self.function(moved) * self.g + self.b


class NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, gain, scale)
        return x * scale * gain

    @staticmethod
    def backward(ctx, grad):
        x, gain, scale = ctx.saved_tensors
        inner = grad * gain * scale
        return inner - x * scale**2 * (inner * x).mean(-1, keepdim=True), (grad * x * scale).flatten(0, -2).sum(0)


class FunctionNorm(Rms):
    def forward(self, x):
        return NormFunction.apply(x, self.g)


class ProductFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.flatten(0, -2).t() @ x.flatten(0, -2)


class FunctionLinear(nn.Module):
    def __init__(self, d, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, d) / math.sqrt(d))

    def forward(self, x):
        return ProductFunction.apply(x, self.weight)


class OutOfSight(torch.autograd.Function):
    """Fills memory behind PyTorch's back, as compiled kernels do."""

    @staticmethod
    def forward(ctx, x, gain):
        out = torch.empty_like(x)
        centred = x - x.mean(-1, keepdim=True)
        out.numpy()[...] = (centred / centred.square().mean(-1, keepdim=True).sqrt() * gain).detach().numpy()
        return out


class KernelNorm(Rms):
    def forward(self, x):
        return OutOfSight.apply(x, self.g)


KERNELS = torch.library.Library("outside", "DEF")
KERNELS.define("norm(Tensor x, Tensor gain) -> Tensor")
KERNELS.define("norm_into(Tensor(a!) out, Tensor x, Tensor gain) -> ()")
KERNELS.define("bounded(Tensor x, Tensor alpha, Tensor gain) -> Tensor")
KERNELS.define("attention(Tensor q, Tensor k, Tensor v) -> Tensor")
KERNELS.define("product(Tensor x, Tensor weight) -> Tensor")


def _norm(x, gain):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain


def _norm_into(out, x, gain):
    out.copy_(_norm(x, gain))


KERNELS.impl("norm", _norm, "CPU")
KERNELS.impl("norm_into", _norm_into, "CPU")
KERNELS.impl("bounded", lambda x, alpha, gain: torch.erf(alpha * x) * gain, "CPU")
KERNELS.impl("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True).clone(), "CPU")
KERNELS.impl("product", lambda x, weight: x @ weight.t(), "CPU")


class OpNorm(Rms):
    def forward(self, x):
        return torch.ops.outside.norm(x, self.g)


class OpNormInto(Rms):
    def forward(self, x):
        out = torch.empty_like(x)
        torch.ops.outside.norm_into(out, x, self.g)
        return out


class OpBounded(Bounded):
    def forward(self, x):
        return torch.ops.outside.bounded(x, self.alpha, self.g)


class OpLinear(FunctionLinear):
    def forward(self, x):
        return torch.ops.outside.product(x, self.weight)


def rotate(x):
    """A rotary embedding by complex numbers."""
    angle = torch.arange(x.shape[-2])[:, None] / torch.arange(1, x.shape[-1] // 2 + 1)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def dot_product(q, k, v, cap=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
    scores = cap * torch.tanh(scores / cap) if cap else scores
    return scores.softmax(-1) @ v


def distances(q, k, v):
    """Attention by Euclidean distance."""
    squares = q.square().sum(-1, keepdim=True) + k.square().sum(-1)[..., None, :]
    return ((2 * q @ k.transpose(-1, -2) - squares) / math.sqrt(WIDTH)).softmax(-1) @ v


def library_distances(q, k, v):
    return (-torch.cdist(q, k).square() / math.sqrt(WIDTH)).softmax(-1) @ v


def spread_distances(q, k, v):
    return (-(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)).softmax(-1) @ v


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def kernel(q, k, v):
    return torch.ops.outside.attention(q, k, v)


class Attention(nn.Module):
    """One projection for all three; key heads may be fewer."""

    def __init__(self, attend=fused, qk=None, full=False, rope=False, groups=1, inner=None, linear=None, unit=False):
        super().__init__()
        linear = linear or (lambda a, b: nn.Linear(a, b, bias=False))
        self.sizes = [D, D // groups, D // groups]
        self.qkv, self.out = linear(D, sum(self.sizes)), linear(D, D)
        self.nq, self.nk = (qk(D if full else WIDTH), qk(D if full else WIDTH)) if qk else (None, None)
        self.full, self.rope, self.groups, self.attend, self.unit = full, rope, groups, attend, unit
        self.inner = inner(D) if inner else nn.Identity()

    def forward(self, x):
        q, k, v = self.qkv(x).split(self.sizes, -1)
        if self.nq and self.full:
            q, k = self.nq(q), self.nk(k)
        q, k, v = (t.unflatten(-1, (-1, WIDTH)).transpose(1, 2) for t in (q, k, v))
        if self.nq and not self.full:
            q, k = self.nq(q), self.nk(k)
        if self.unit:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        q, k = (rotate(q), rotate(k)) if self.rope else (q, k)
        k, v = (t.repeat_interleave(self.groups, 1) for t in (k, v))
        return self.out(self.inner(self.attend(q, k, v).transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    def __init__(self, gate=False, inner=None, linear=nn.Linear):
        super().__init__()
        self.up, self.down = linear(D, 2 * D), linear(2 * D if not gate else D, D)
        self.gate, self.inner = gate, inner(self.down_width(gate)) if inner else nn.Identity()

    @staticmethod
    def down_width(gate):
        return D if gate else 2 * D

    def forward(self, x):
        hidden = self.up(x)
        if self.gate:
            one, other = hidden.chunk(2, -1)
            return self.down(self.inner(F.silu(one) * other))
        return self.down(self.inner(F.gelu(hidden)))


class Block(nn.Module):
    """A block with its norms where ``placement`` says; ``stream`` and ``branch`` multiply what is added."""

    def __init__(self, placement, norm, attention, feed, stream=1.0, branch=None, shrink=1.0):
        super().__init__()
        self.placement, self.stream, self.shrink = placement, stream, shrink
        self.parts = nn.ModuleList([attention, feed])
        self.before, self.after = (nn.ModuleList([norm(D), norm(D)]) for _ in range(2))
        self.weights = nn.ParameterList([branch.clone(), branch.clone()]) if branch is not None else [1.0, 1.0]

    def forward(self, x):
        if self.placement == "parallel":
            inner = self.before[0](x)
            return x + self.parts[0](inner) + self.parts[1](inner)
        for i, part in enumerate(self.parts):
            inner = part(self.before[i](x) * self.shrink if self.placement in ("pre", "peri") else x)
            inner = self.after[i](inner) if self.placement in ("peri", "output") else inner
            added = inner if isinstance(self.weights, list) else self.weights[i] * inner
            x = x * self.stream + added if self.stream != 1 else x + added
            x = self.after[i](x) if self.placement == "post" else x
        return x


class Model(nn.Module):
    """A decoder of such blocks.

    Args:
        every: a norm on the stream after this many blocks, and none elsewhere.
    """

    def __init__(self, placement="pre", norm=Rms, attention=None, feed=None, final=True, every=0, lns=False, **block):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, D), nn.Parameter(torch.randn(16, D))
        depth = 8 if every else DEPTH
        self.blocks = nn.ModuleList(
            Block(
                placement, norm, Attention(**(attention or {})), FeedForward(**(feed or {})),
                shrink=(i + 1) ** -0.5 if lns else 1.0, **block,
            )
            for i in range(depth)
        )  # fmt: skip
        self.final, self.every = norm(D) if final else nn.Identity(), every
        self.head = nn.Linear(D, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) * math.sqrt(D) + self.position[: tokens.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x)
            x = self.final(x) if self.every and (i + 1) % self.every == 0 else x
        return self.head(x if self.every else self.final(x))


class Mixer(nn.Module):
    """No attention: tokens are mixed by a matrix."""

    def __init__(self, length=8):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2 * DEPTH))
        self.mixing = nn.ModuleList(nn.Linear(length, length) for _ in range(DEPTH))
        self.feeding = nn.ModuleList(FeedForward() for _ in range(DEPTH))

    def forward(self, tokens):
        x = self.embed(tokens)
        for i in range(DEPTH):
            x = x + self.mixing[i](self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.feeding[i](self.norms[2 * i + 1](x))
        return x


class NormalisedGpt(nn.Module):
    """Stream and branches on the unit sphere, joined by interpolation."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, D)
        parts = [Attention(unit=True) if i % 2 == 0 else FeedForward(gate=True) for i in range(2 * DEPTH)]
        self.parts, self.rate = nn.ModuleList(parts), nn.ParameterList(torch.full((D,), 0.1) for _ in parts)

    def forward(self, tokens):
        x = F.normalize(self.embed(tokens), dim=-1)
        for part, rate in zip(self.parts, self.rate, strict=True):
            x = F.normalize(torch.lerp(x, F.normalize(part(x), dim=-1), rate), dim=-1)
        return x
