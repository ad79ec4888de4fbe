"""Attention that no mode of torch's sees inside of: FlexAttention, FlashAttention's functions, registered functions."""

from __future__ import annotations

import math
import sys
import types

import flash_stub
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from training import update

import stabilitylens as sl

HEADS, WIDTH, LENGTH = 4, 8, 12
D = HEADS * WIDTH


class Attending(nn.Module):
    """Blocks whose attention is a function of q, k and v of shape (batch, position, head, d)."""

    class Block(nn.Module):
        def __init__(self, attend):
            super().__init__()
            self.qkv, self.out, self.norm, self.attend = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D), attend

        def forward(self, x: Tensor) -> Tensor:
            qkv = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH))
            return x + self.out(self.attend(qkv).flatten(-2))

    def __init__(self, attend):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(self.Block(attend) for _ in range(2))
        for block in self.blocks:
            block.qkv.weight.data.mul_(4)  # so that caps, masks and slopes matter

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def trained(model: nn.Module, x: Tensor, logdir=None, steps: int = 2):
    """Losses and weights after a few steps, observed where there is a folder."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    lens = sl.attach(model, optimizer, logdir, every=1) if logdir else None
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        update(loss, optimizer, lens, ready=False)
        losses.append(loss.detach())
    if lens:
        assert not lens.guard.failures
        lens.close()
    return losses, [p.detach().clone() for p in model.parameters()]


@pytest.fixture
def flash(monkeypatch):
    """The library, as if it were installed, and a user's module that took its functions by name."""
    library, user = types.ModuleType("flash_attn"), types.ModuleType("a_users_module")
    for function in flash_stub.FUNCTIONS:
        setattr(library, function.__name__, function)
        setattr(user, function.__name__, function)
    monkeypatch.setitem(sys.modules, "flash_attn", library)
    monkeypatch.setitem(sys.modules, "a_users_module", user)
    return user


SLOPES = 0.5 ** torch.arange(1, HEADS + 1)
OPTIONS = {
    "plain": {}, "causal": {"causal": True}, "window": {"causal": True, "window_size": (3, 0)},
    "window both ways": {"window_size": (2, 1)}, "window to the right alone": {"window_size": (-1, 0)},
    "only itself": {"window_size": (0, 0)},
    "cap": {"causal": True, "softcap": 2.0}, "alibi": {"causal": True, "alibi_slopes": SLOPES},
    "scale": {"softmax_scale": 0.7},
}


def entropy_and_largest(weights: Tensor, raw: Tensor):
    return torch.special.entr(weights).sum(-1), raw.amax((0, 2, 3))


def q_k_of(model: nn.Module, x: Tensor):
    qkv = model.blocks[0].qkv(model.blocks[0].norm(x)).unflatten(-1, (3, HEADS, WIDTH))
    return qkv.select(-3, 0).detach(), qkv.select(-3, 1).detach()


def options_of(kwargs):
    names = {"softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0, "alibi_slopes": None}
    return [kwargs.get(n, default) for n, default in names.items()]


def compare(run, entropy, largest, q):
    assert run["attn_entropy"].values[0][0] == pytest.approx(entropy.numpy(), abs=1e-4)
    assert run["max_attn_logit"].values[0][0] == pytest.approx(largest.numpy(), rel=1e-4)
    assert run["query_norm"].values[0][0] == pytest.approx(q.double().norm(dim=-1).flatten(0, -2).mean(0).numpy(), rel=1e-4)
    assert run["query_proj_norm"].values[0] == pytest.approx(run["query_norm"].values[0])
    assert run["key_proj_norm"].values[0] == pytest.approx(run["key_norm"].values[0])


@pytest.mark.parametrize("how", ["func", "qkvpacked", "kvpacked"])
@pytest.mark.parametrize("option", OPTIONS)
def test_flash_attention_by_its_arguments(how, option, flash, tmp_path):
    kwargs = OPTIONS[option]

    def attend(qkv):
        if how == "qkvpacked":
            return flash.flash_attn_qkvpacked_func(qkv, **kwargs)
        if how == "kvpacked":
            return flash.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], **kwargs)
        return flash.flash_attn_func(*qkv.unbind(2), **kwargs)

    x = torch.randn(2, LENGTH, D)
    q, k = q_k_of(Attending(attend), x)
    bare, seen = trained(Attending(attend), x), trained(Attending(attend), x, tmp_path)
    assert all(map(torch.equal, bare[0] + bare[1], seen[0] + seen[1]))
    entropy, largest = entropy_and_largest(*flash_stub.weights_of(q, k, *options_of(kwargs)))
    run = sl.load(tmp_path)
    compare(run, entropy.mean((0, 2)), largest, q)
    assert ("max_attn_logit_precap" in run) == (option == "cap")
    assert flash.flash_attn_func is flash_stub.flash_attn_func, "it is put back"


def test_flash_attention_is_aligned_bottom_right_where_there_are_more_keys(flash, tmp_path):
    def attend(qkv):
        q, k, v = qkv.unbind(2)
        y = flash.flash_attn_func(q[:, -5:], k, v, causal=True)
        return F.pad(y, (0, 0, 0, 0, LENGTH - 5, 0))

    x = torch.randn(2, LENGTH, D)
    q, k = q_k_of(Attending(attend), x)
    trained(Attending(attend), x, tmp_path)
    entropy, largest = entropy_and_largest(*flash_stub.weights_of(q[:, -5:], k, *options_of({"causal": True})))
    compare(sl.load(tmp_path), entropy.mean((0, 2)), largest, q[:, -5:])


def test_packed_documents_see_themselves_alone(flash, tmp_path):
    starts = torch.tensor([0, 5, 6, LENGTH], dtype=torch.int32)

    def attend(qkv):
        return flash.flash_attn_varlen_func(*qkv.unbind(-3), starts, starts, 6, 6, causal=True)

    x = torch.randn(LENGTH, D)
    q, k = q_k_of(Attending(attend), x)
    trained(Attending(attend), x, tmp_path)
    entropies, largest = [], []
    for a, b in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        entropy, top = entropy_and_largest(*flash_stub.weights_of(q[None, a:b], k[None, a:b], *options_of({"causal": True})))
        entropies.append(entropy[0])
        largest.append(top)
    compare(sl.load(tmp_path), torch.cat(entropies, -1).mean(-1), torch.stack(largest).amax(0), q)


# FlexAttention: on the CPU it takes no inputs that require grad


class Frozen(Attending):
    def forward(self, x):
        for block in self.blocks:
            block.qkv.requires_grad_(False)
            block.norm.requires_grad_(False)
        for block in self.blocks:
            x = block(x.detach()) + x
        return x


compiled_flex = torch.compile(flex_attention, backend="eager")


def flex(qkv, compiled=False, **kwargs):
    function = compiled_flex if compiled else flex_attention
    q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
    return function(q, k, v, **kwargs).transpose(1, 2)


def dense(qkv, mask, bias):
    q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(~mask, -math.inf)).transpose(1, 2)


I, J = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None]
DOCUMENTS = torch.tensor([0] * 5 + [1] * 7)
TABLE = torch.linspace(-1, 1, 2 * LENGTH)
MODS = {
    "causal by the mask": (lambda b, h, q, k: q >= k, None, I >= J, 0 * I + 0.0 * J),
    "documents": (
        lambda b, h, q, k: (q >= k) & (DOCUMENTS[q] == DOCUMENTS[k]), None,
        (I >= J) & (DOCUMENTS[:, None] == DOCUMENTS[None]), 0 * I + 0.0 * J,
    ),
    "a table of distances": (None, lambda s, b, h, q, k: s + TABLE[q - k + LENGTH], I + J >= 0, TABLE[I - J + LENGTH]),
    "causal by the score": (None, lambda s, b, h, q, k: torch.where(q >= k, s, -math.inf), I >= J, 0 * I + 0.0 * J),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("mod", MODS)
def test_flex_attention_is_what_its_mods_make_of_it(mod, compiled, tmp_path):
    mask_mod, score_mod, mask, bias = MODS[mod]
    kwargs = {} if mask_mod is None else {"block_mask": create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device="cpu")}
    x = torch.randn(2, LENGTH, D)
    runs = []
    for i, attend in enumerate((lambda y: flex(y, compiled, score_mod=score_mod, **kwargs), lambda y: dense(y, mask, bias))):
        trained(Frozen(attend), x, tmp_path / str(i), steps=1)
        runs.append(sl.load(tmp_path / str(i)))
    assert runs[0].header.coverage.attention == (2, 2)
    for name in ("max_attn_logit", "attn_entropy", "attn_entropy_ratio", "query_norm", "key_norm", "query_proj_norm"):
        assert runs[0][name].values == pytest.approx(runs[1][name].values, abs=1e-4), name


@pytest.mark.filterwarnings("ignore")
def test_a_score_mod_that_cannot_be_evaluated_is_said(monkeypatch, tmp_path):
    def refuse(score_mod):
        raise RuntimeError("no such index")

    monkeypatch.setattr("stabilitylens.hooks.foreign_calls.score_mod_on", refuse)
    trained(Frozen(lambda y: flex(y, score_mod=lambda s, b, h, q, k: s)), torch.randn(2, LENGTH, D), tmp_path, steps=1)
    run = sl.load(tmp_path)
    said = dict(run.header.coverage.not_observed)
    assert said["blocks.0"] == "its mask or score_mod could not be evaluated (RuntimeError: no such index)"
    assert "attn_entropy" not in run


# the attention registry of transformers


def llama(attention: str):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=D, intermediate_size=64, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, attn_implementation=attention,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


class Hidden(torch.autograd.Function):
    """Attention that shows nothing of itself."""

    @staticmethod
    def forward(ctx, q, k, v, mask, scale):
        with torch.enable_grad():
            inner = [t.detach().requires_grad_() for t in (q, k, v)]
            y = F.scaled_dot_product_attention(*inner, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True)
        ctx.inner, ctx.y = inner, y
        return y.detach()

    @staticmethod
    def backward(ctx, grad):
        return (*torch.autograd.grad(ctx.y, ctx.inner, grad), None, None)


def kernel(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    return Hidden.apply(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None


def shown(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    causal = attention_mask is None
    y = F.scaled_dot_product_attention(query, key, value, attention_mask, is_causal=causal, scale=scaling, enable_gqa=True)
    return y.transpose(1, 2).contiguous(), None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("function", [kernel, shown], ids=["hidden", "of torch's functions"])
def test_a_registered_function_is_seen_once_with_the_mask_that_it_was_given(function, padded, tmp_path):
    pytest.importorskip("transformers")
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register("a_users_own", function)
    AttentionMaskInterface.register("a_users_own", sdpa_mask)
    x = torch.randint(0, 64, (2, 10))
    mask = torch.ones_like(x)
    mask[1, 6:] = 1 - int(padded)
    runs = {}
    for name in ("a_users_own", "sdpa"):
        model = llama(name).train()
        with sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path / name, every=1) as lens:
            loss = model(input_ids=x, attention_mask=mask, labels=x, use_cache=False).loss
            loss.backward()
            lens.step(loss)
            assert not lens.guard.failures
        runs[name] = sl.load(tmp_path / name)
        assert runs[name]["attn_entropy"].values.shape[1] == 2
    for name in ("max_attn_logit", "attn_entropy", "query_norm", "query_proj_norm"):
        assert runs["a_users_own"][name].values == pytest.approx(runs["sdpa"][name].values, abs=1e-5), name
    assert AttentionInterface._global_mapping["a_users_own"] is function, "it is put back"
