"""Keys that are written into a buffer piece by piece, as latent attention does, and attention that is compiled by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loops import observed
from torch import Tensor, nn
from training import VOCABULARY, tokens

HEADS, ROTATED, PLAIN = 4, 4, 8
D = 32


class Latent(nn.Module):
    """Multi-head latent attention whose queries and keys are put together in buffers that were there before.

    ``how`` is ``copy_`` or ``slices`` (both write into the buffer) or ``cat`` (makes a new tensor).
    """

    def __init__(self, how: str, by_hand: bool) -> None:
        super().__init__()
        self.how, self.by_hand, self.entered = how, by_hand, []
        self.q = nn.Linear(D, HEADS * (PLAIN + ROTATED), bias=False)
        self.down, self.norm = nn.Linear(D, 16 + ROTATED, bias=False), nn.RMSNorm(16)
        self.up, self.out = nn.Linear(16, HEADS * 2 * PLAIN, bias=False), nn.Linear(HEADS * PLAIN, D)

    def together(self, plain: Tensor, rotated: Tensor) -> Tensor:
        rotated = rotated.expand(-1, HEADS, -1, -1)
        if self.how == "cat":
            return torch.cat((plain, rotated), -1)
        buffer = plain.new_empty(*plain.shape[:-1], PLAIN + ROTATED)
        if self.how == "copy_":
            buffer.narrow(-1, 0, PLAIN).copy_(plain)
            buffer.narrow(-1, PLAIN, ROTATED).copy_(rotated)
        else:
            buffer[..., :PLAIN] = plain
            buffer[..., PLAIN:] = rotated
        return buffer

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        latent, rotated = self.down(x).split([16, ROTATED], -1)
        plain, v = self.up(self.norm(latent)).unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(2, -1)
        k = self.together(plain, rotated.unsqueeze(1))
        self.entered.append((q.detach().double(), k.detach().double()))
        if self.by_hand:
            scores = q @ k.transpose(-2, -1) / (PLAIN + ROTATED) ** 0.5
            y = scores.masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), float("-inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self, make) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, D), nn.Linear(D, VOCABULARY)
        self.blocks = nn.ModuleList(Block(make()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(h)[:, :-1].flatten(0, 1), x[:, 1:].flatten())


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.ff = nn.LayerNorm(D), attention, nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + F.gelu(self.ff(self.norm2(x)))


def loop_of(make, kept):
    def loop(attach):
        model = Decoder(make)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        lens, losses = attach(model, optimizer), []
        for _ in range(2):
            loss = model(tokens())
            loss.backward()
            lens.grads_ready()
            optimizer.step()
            optimizer.zero_grad()
            lens.step(loss)
            losses.append(loss.detach())
        kept[:] = [block.attn for block in model.blocks]
        return model, losses

    return loop


def expected(q: Tensor, k: Tensor) -> dict[str, np.ndarray]:
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    raw = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    entropy = torch.special.entr(raw.softmax(-1)).sum(-1).mean((0, 2))
    return {
        "max_attn_logit": raw.amax((0, 2, 3)).numpy(), "attn_entropy": entropy.numpy(),
        "query_norm": q.norm(dim=-1).mean((0, 2)).numpy(), "key_norm": k.norm(dim=-1).mean((0, 2)).numpy(),
    }  # fmt: skip


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("how", ["cat", "copy_", "slices"])
def test_keys_put_together_in_a_buffer_are_read_as_they_enter(how, by_hand, tmp_path):
    kept: list = []
    run = observed(loop_of(lambda: Latent(how, by_hand), kept), tmp_path)
    for layer, attention in enumerate(kept):
        for step, (q, k) in enumerate(attention.entered):
            for name, want in expected(q, k).items():
                assert run[name].values[step, layer] == pytest.approx(want, abs=1e-4), (name, layer, step)
    if how != "cat":  # what was written into a buffer cannot be followed back, which is said
        assert "key_proj_norm" not in run
        assert "keys of blocks.0.attn" in dict(run.header.coverage.not_observed)["key_proj_norm"]
    assert run["query_proj_norm"].values == pytest.approx(run["query_norm"].values, rel=1e-5)


class Flex(nn.Module):
    """Flexible attention, compiled by itself inside a model that is not, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.entered = nn.Linear(D, 3 * D), nn.Linear(D, D), []

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        self.entered.append((q.detach().double(), k.detach().double()))
        mask = create_block_mask(causal, None, None, x.shape[1], x.shape[1], device="cpu")
        y = compiled(q.detach(), k.detach(), v.detach(), block_mask=mask)  # it has no backward on the CPU
        return self.out(y.transpose(1, 2).flatten(2))


def causal(_b, _h, query, key):
    return query >= key


flex = pytest.importorskip("torch.nn.attention.flex_attention")
create_block_mask = flex.create_block_mask
compiled = torch.compile(flex.flex_attention, backend="eager")


@pytest.mark.filterwarnings("ignore")
def test_flexible_attention_that_is_compiled_by_itself(tmp_path):
    kept: list = []
    run = observed(loop_of(Flex, kept), tmp_path)
    for layer, attention in enumerate(kept):
        for step, (q, k) in enumerate(attention.entered):
            for name, want in expected(q, k).items():
                assert run[name].values[step, layer] == pytest.approx(want, abs=1e-4), (name, layer, step)
