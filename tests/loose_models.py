"""Models whose layers no module's call holds together: the parent adds the branches to the stream, or calls a forward itself."""

import torch
import torch.nn.functional as F
from torch import nn
from training import VOCABULARY, Attention, Block

D = 32


class Normed(nn.Module):
    """A branch with its norm inside."""

    def __init__(self, inner):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(D), inner

    def forward(self, x):
        return self.inner(self.norm(x))


def attention():
    return Attention(D, 4, 0.0, by_hand=True)


def feed():
    return nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))


class Outside(nn.Module):
    """A model whose subclasses add the branches themselves, and keep the stream after each layer."""

    def __init__(self, depth=3):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, D)
        self.build(depth)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCABULARY, bias=False)
        self.streams = []

    def note(self, x):
        if x.requires_grad and not torch.is_inference_mode_enabled():
            x.retain_grad()
        self.streams.append(x)
        return x

    def forward(self, x):
        self.streams = []
        h = self.run(self.embedding(x))
        return F.cross_entropy(self.head(self.norm(h))[:, :-1].flatten(0, 1), x[:, 1:].flatten())


class Pairs(Outside):
    def build(self, depth):
        self.layers = nn.ModuleList(nn.ModuleList([Normed(attention()), Normed(feed())]) for _ in range(depth))

    def run(self, x):
        for attend, feed_forward in self.layers:
            x = attend(x) + x
            x = self.note(feed_forward(x) + x)
        return x


class PairsInPlace(Pairs):
    def run(self, x):
        for attend, feed_forward in self.layers:
            y = attend(x)
            y += x
            x = feed_forward(y)
            x += y
            self.note(x)
        return x


class PostPairs(Outside):
    def build(self, depth):
        self.layers = nn.ModuleList(
            nn.ModuleList([attention(), nn.LayerNorm(D), feed(), nn.LayerNorm(D)]) for _ in range(depth)
        )

    def run(self, x):
        for attend, norm1, feed_forward, norm2 in self.layers:
            x = norm1(x + attend(x))
            x = self.note(norm2(x + feed_forward(x)))
        return x


class Named(Outside):
    def build(self, depth):
        self.layers = nn.ModuleDict(
            {f"l{i}": nn.ModuleDict({"norm1": nn.LayerNorm(D), "attend": attention(), "norm2": nn.LayerNorm(D), "feed": feed()}) for i in range(depth)}
        )

    def run(self, x):
        for layer in self.layers.values():
            x = x + layer["attend"](layer["norm1"](x))
            x = self.note(x + layer["feed"](layer["norm2"](x)))
        return x


class Columns(Outside):
    def build(self, depth):
        self.attends, self.feeds = (nn.ModuleList(make() for _ in range(depth)) for make in (attention, feed))
        self.norms1, self.norms2 = (nn.ModuleList(nn.LayerNorm(D) for _ in range(depth)) for _ in range(2))

    def run(self, x):
        for attend, feed_forward, norm1, norm2 in zip(self.attends, self.feeds, self.norms1, self.norms2, strict=True):
            x = x + attend(norm1(x))
            x = self.note(x + feed_forward(norm2(x)))
        return x


class Turns(Outside):
    def build(self, depth):
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(D), make()]) for _ in range(depth) for make in (attention, feed)
        )

    def run(self, x):
        for i, (norm1, branch) in enumerate(self.layers):
            x = x + branch(norm1(x))
            if i % 2:
                self.note(x)
        return x


class Branch(Block):
    """Attention and feed-forward beside each other, without the stream."""

    def forward(self, x):
        y = self.norm1(x)
        return self.attn(y) + self.down(F.gelu(self.up(y)))


class Added(Outside):
    def build(self, depth):
        self.layers = nn.ModuleList(Branch(D, 4, 0.0) for _ in range(depth))

    def run(self, x):
        for block in self.layers:
            x = self.note(x + block(x))
        return x


class NormedOutside(Added):
    """The norm is one of the parent's, and the branch passes a dropout."""

    def build(self, depth):
        super().build(depth)
        self.shared, self.drop = nn.LayerNorm(D), nn.Dropout(0.0)

    def run(self, x):
        for block in self.layers:
            x = self.note(x + self.drop(block(self.shared(x))))
        return x


class Direct(Outside):
    def build(self, depth):
        self.layers = nn.ModuleList(Block(D, 4, 0.0, by_hand=True) for _ in range(depth))

    def run(self, x):
        for block in self.layers:
            x = self.note(block.forward(x))
        return x
