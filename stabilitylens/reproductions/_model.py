"""The reference Transformer: small, readable, every choice a field of :class:`Choices`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from stabilitylens.norms import DepthScaledNorm, deep_norm_init_, deep_norm_scales, make_norm, residual
from stabilitylens.reproductions._choices import WITH_FINAL_NORM, Choices
from stabilitylens.reproductions._parts import Attention, Experts, FeedForward, Stream
from stabilitylens.reproductions._place import device

#: standard deviation of learned positions at the start, as in GPT-2
POSITION_STD = 0.02


class Layer(nn.Module):
    """Attention and a feed-forward network on the residual stream.

    Args:
        choices: the model's.
        number: the layer's, from 1.
    """

    def __init__(self, choices: Choices, number: int) -> None:
        super().__init__()
        self.choices, self.number = choices, number
        attention = Attention(choices)
        feed_forward = Experts(choices) if choices.experts else FeedForward(choices)
        if choices.placement == "parallel":
            self.sublayers = nn.ModuleList([residual("parallel", attention, self._norm, others=(feed_forward,))])
        else:
            both = enumerate((attention, feed_forward))
            self.sublayers = nn.ModuleList(
                residual(choices.placement, part, self._norm, **self._options(2 * number - 1 + i)) for i, part in both
            )

    def _norm(self) -> nn.Module:
        norm = make_norm(self.choices.norm, self.choices.width)
        return DepthScaledNorm(norm, self.number) if self.choices.layer_norm_scaling else norm

    def _options(self, sublayer: int) -> dict[str, Any]:
        if self.choices.placement == "periodic":
            return {"layer": sublayer, "every": self.choices.period}
        if self.choices.placement == "deep":
            return {"alpha": deep_norm_scales(self.choices.depth).alpha}
        return {}

    def forward(self, x: Stream) -> Stream:
        """One layer."""
        for sublayer in self.sublayers:
            x = sublayer(x)
        return x


class Transformer(nn.Module):
    """A decoder, an encoder or a ViT."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.choices = choices
        vit = choices.kind == "vit"
        self.embed = nn.Linear(choices.pixels, choices.width) if vit else nn.Embedding(choices.vocabulary, choices.width)
        self.positions = nn.Parameter(POSITION_STD * torch.randn(choices.context, choices.width))
        self.layers = nn.ModuleList(Layer(choices, number + 1) for number in range(choices.depth))
        normed = choices.placement in WITH_FINAL_NORM
        self.norm = make_norm(choices.norm, choices.width) if normed else nn.Identity()
        self.head = nn.Linear(choices.width, choices.vocabulary, bias=False)
        initialise_(self)
        if choices.tied:
            self.embed.weight = self.head.weight

    def forward(self, x: Int[Tensor, "batch position"] | Float[Tensor, "batch position pixel"]) -> Tensor:
        """Logits: (batch, position, vocabulary); of a ViT (batch, class)."""
        h = self.embed(x) + self.positions[: x.shape[1]]
        for layer in self.layers:
            h = layer(h)
        h = self.norm(h)
        if self.choices.base_width is not None:
            h = h / self.choices.times_base
        logits: Tensor = self.head(h.mean(1) if self.choices.kind == "vit" else h)
        return logits

    def groups(self, lr: float) -> list[dict[str, Any]]:
        """Parameters with their learning rates: in muP, that of the layers' matrices falls as the width grows."""
        if self.choices.base_width is None:
            return [{"params": list(self.parameters()), "lr": lr}]
        hidden = [p for p in self.layers.parameters() if p.ndim > 1]
        ids = {id(p) for p in hidden}
        others = [p for p in self.parameters() if id(p) not in ids]
        return [{"params": others, "lr": lr}, {"params": hidden, "lr": lr / self.choices.times_base}]


def fresh(choices: Choices, seed: int) -> Transformer:
    """A new model whose weights depend on the seed only, wherever it is put."""
    torch.manual_seed(seed)
    return Transformer(choices).to(device())


@torch.no_grad()
def initialise_(model: Transformer) -> None:
    """Give the layers the initial weights that the choices name; ``torch`` leaves them as they are.

    In muP, the output matrix has entries of one size whatever the width.
    """
    choices = model.choices
    model.head.weight.mul_(math.sqrt(choices.times_base))
    deep = choices.placement == "deep"
    if choices.init == "torch" and not deep:
        return
    beta = deep_norm_scales(choices.depth).beta
    for name, module in model.layers.named_modules():
        if isinstance(module, nn.Linear):
            kind = name.rpartition(".")[2]
            deep_norm_init_(module.weight, beta if deep and kind not in ("q", "k", "router") else 1.0)
            if choices.init == "scaled" and kind in ("out", "w2"):
                module.weight.mul_(1 / math.sqrt(2 * choices.depth))


def loss_of(logits: Float[Tensor, "*row word"], targets: Int[Tensor, "*row"], z_loss: float = 0.0) -> Float[Tensor, ""]:
    r"""Mean cross-entropy in nat, plus ``z_loss`` times the mean of $\ln^2 Z$ (PaLM, https://arxiv.org/abs/2204.02311).

    Targets of −100 count in neither.
    """
    rows, words = logits.flatten(0, -2), targets.flatten()
    loss = F.cross_entropy(rows, words)
    if z_loss:
        loss = loss + z_loss * rows[words != -100].logsumexp(-1).square().mean()
    return loss
