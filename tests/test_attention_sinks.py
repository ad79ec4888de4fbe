"""Attention sinks: a logit beside those of the keys, whose share of the softmax goes to no value."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from test_attention_foreign import Hidden
from torch import Tensor, nn
from training import update

import stabilitylens as sl
from stabilitylens.run import Run

D, HEADS, LENGTH = 32, 4, 12
AHEAD = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


class Block(nn.Module):
    def __init__(self, attend) -> None:
        super().__init__()
        self.qkv, self.out, self.norm, self.attend = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D), attend
        self.sinks = nn.Parameter(torch.linspace(-1, 2, HEADS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        self.entered = q.detach().double(), k.detach().double()
        return x + self.out(self.attend(self, q, k, v).transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(attend) for _ in range(2))
        for block in self.blocks:
            block.qkv.weight.data.mul_(4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def scores(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(AHEAD, -torch.inf)


def column(block: Block, q: Tensor) -> Tensor:
    return block.sinks.reshape(1, -1, 1, 1).expand(len(q), -1, q.shape[2], 1)


def behind(block, q, k, v):
    """As gpt-oss has it: the largest logit is taken off first."""
    every = torch.cat([scores(q, k), column(block, q)], dim=-1)
    every = every - every.max(dim=-1, keepdim=True).values
    return F.softmax(every, dim=-1)[..., :-1] @ v


def before(block, q, k, v):
    return torch.cat((column(block, q), scores(q, k)), -1).softmax(-1)[..., 1:] @ v


def zero(_block, q, k, v):
    """A softmax with one in its denominator."""
    return F.pad(scores(q, k), (1, 0)).softmax(-1)[..., 1:] @ v


def record(model: nn.Module, x: Tensor, folder) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with sl.attach(model, optimizer, folder, every=1) as lens:
        update(model(x).square().mean(), optimizer, lens)
        assert not lens.guard.failures
    return sl.load(folder)


def compare(run: Run, i: int, q: Tensor, k: Tensor, sinks: Tensor) -> None:
    """Against the whole softmax in float64."""
    raw = scores(q, k)
    p = torch.cat((raw, sinks.detach().double().reshape(1, -1, 1, 1).expand(len(q), HEADS, LENGTH, -1)), -1).softmax(-1)
    entropy, most = torch.special.entr(p).sum(-1), torch.arange(2, LENGTH + 2).double().log()
    assert run["attn_entropy"].values[0, i] == pytest.approx(entropy.mean((0, 2)).numpy(), abs=1e-4)
    assert run["attn_entropy_ratio"].values[0, i] == pytest.approx((entropy / most).mean((0, 2)).numpy(), abs=1e-4)
    assert run["max_attn_logit"].values[0, i] == pytest.approx(raw.amax((0, 2, 3)).numpy(), abs=1e-4)


@pytest.mark.parametrize("attend", [behind, before, zero])
def test_entropy_is_that_of_the_softmax_as_computed_with_its_sink(attend, tmp_path):
    model = Stack(attend)
    run = record(model, torch.randn(2, LENGTH, D), tmp_path)
    for i, block in enumerate(model.blocks):
        compare(run, i, *block.entered, torch.zeros(HEADS) if attend is zero else block.sinks)


def hidden(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return Hidden.apply(q, k, v, None, q.shape[-1] ** -0.5)


@pytest.mark.parametrize("name", ["s_aux", "learnable_sink"])
def test_a_kernel_of_flash_attention_that_is_given_sinks(name, monkeypatch, tmp_path):
    def flash_attn_func(q, k, v, causal=False, s_aux=None, learnable_sink=None):
        return hidden(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

    def attend(block, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return sys.modules["flash_attn"].flash_attn_func(q, k, v, causal=True, **{name: block.sinks}).transpose(1, 2)

    library = types.ModuleType("flash_attn")
    library.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", library)
    model = Stack(attend)
    run = record(model, torch.randn(2, LENGTH, D), tmp_path)
    for i, block in enumerate(model.blocks):
        compare(run, i, *block.entered, block.sinks)


@pytest.mark.filterwarnings("ignore")
def test_a_registered_function_that_is_given_sinks_has_the_entropy_of_the_eager_one(tmp_path):
    transformers = pytest.importorskip("transformers")
    from transformers.masking_utils import sdpa_mask

    def kernel(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
        with torch._C.DisableTorchFunction():
            return Hidden.apply(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("a_users_sinks", kernel)
    transformers.AttentionMaskInterface.register("a_users_sinks", sdpa_mask)
    runs, tokens = [], torch.randint(0, 64, (2, 10))
    for name in ("a_users_sinks", "eager"):
        config = transformers.GptOssConfig(
            vocab_size=64, hidden_size=D, intermediate_size=32, num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=2,
            head_dim=8, num_local_experts=2, num_experts_per_tok=1, attn_implementation=name, layer_types=["full_attention"], pad_token_id=0,
        )  # fmt: skip
        torch.manual_seed(0)
        model = transformers.GptOssForCausalLM(config).train()
        for layer in model.model.layers:
            layer.self_attn.sinks.data = torch.linspace(-1, 2, HEADS)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        with sl.attach(model, optimizer, tmp_path / name, every=1) as lens:
            update(model(input_ids=tokens, labels=tokens, use_cache=False).loss, optimizer, lens)
        runs.append(sl.load(tmp_path / name))
    for metric in ("attn_entropy", "attn_entropy_ratio", "max_attn_logit", "masked_rows"):
        assert runs[0][metric].values == pytest.approx(runs[1][metric].values, abs=1e-5), metric


def test_a_softmax_over_pieces_of_two_products_is_said_and_not_read(tmp_path):
    def attend(_block, q, k, v):
        w = torch.cat((scores(q, k), scores(q, k.flip(2))), -1).softmax(-1)
        return w[..., :LENGTH] @ v

    run = record(Stack(attend), torch.randn(2, LENGTH, D), tmp_path)
    assert "attn_entropy" not in run
    assert "pieces put together" in run.why_missing("attn_entropy")
    assert run.header.coverage.attention == (0, 2)
