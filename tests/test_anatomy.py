"""Anatomy is read off the dataflow of hand-written models, and reading leaves them as they were."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from stabilitylens.anatomy import Anatomy, AttentionCall, SubLayer  # noqa: E402
from stabilitylens.errors import BadInput  # noqa: E402
from stabilitylens.hooks.anatomy import read_anatomy  # noqa: E402
from stabilitylens.reports.anatomy_text import draw  # noqa: E402

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


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("placement", ["pre", "post", "peri", "output", "none"])
def test_placement(placement, fused):
    anatomy = read_anatomy(Decoder([placement] * 3, final=placement != "post", fused=fused))
    assert anatomy.norm_placement == placement
    assert anatomy.norm_kind == (None if placement == "none" else "rmsnorm")
    assert anatomy.final_norm is (placement != "post")
    assert anatomy.parallel is False
    assert anatomy.layers == ("blocks.0", "blocks.1", "blocks.2")
    assert [s.kind for s in anatomy.sub_layers] == ["attention", "feed_forward"] * 3
    assert [s.layer for s in anatomy.sub_layers] == [0, 0, 1, 1, 2, 2]
    assert {s.module for s in anatomy.sub_layers if s.layer == 1} == {"blocks.1.attention", "blocks.1.mlp"}
    assert (anatomy.n_layers, anatomy.n_attention, anatomy.d_model) == (3, 3, D)
    assert (anatomy.n_heads, anatomy.d_head) == (HEADS, WIDTH)
    assert anatomy.attention_scale == pytest.approx(1 / math.sqrt(WIDTH))
    assert (anatomy.qk_norm, anatomy.soft_cap, anatomy.latent_norm) == ("none", None, False)
    assert anatomy.uncertain == ()


def test_post_ln_with_a_norm_of_its_own_at_the_end():
    assert read_anatomy(Decoder(["post"] * 2, final=True)).final_norm is True


def test_mixed_placement_is_told_by_sub_layer():
    anatomy = read_anatomy(Decoder(["post", "post", "pre", "pre"]))
    assert anatomy.norm_placement == "mixed"
    assert "norm_placement" in anatomy.uncertain
    assert [s.placement for s in anatomy.sub_layers if s.layer in (0, 3)] == ["post", "post", "pre", "pre"]


def test_a_norm_every_few_blocks_is_periodic():
    class Periodic(Decoder):
        def forward(self, tokens):
            x = self.embed(tokens) + self.position[: tokens.shape[1]]
            for i, block in enumerate(self.blocks):
                x = block(x)
                x = self.final(x) if i % 3 == 2 else x
            return self.head(x)

    anatomy = read_anatomy(Periodic(["none"] * 10))
    assert anatomy.norm_placement == "periodic"


@pytest.mark.parametrize("fused", [False, True])
def test_parallel_blocks(fused):
    anatomy = read_anatomy(Decoder(["parallel"] * 2, fused=fused))
    assert (anatomy.parallel, anatomy.norm_placement) == (True, "pre")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "rope, position", [("none", "no_rope"), ("before", "post_rope"), ("after", "pre_rope")]
)
@pytest.mark.parametrize("norm", [Rms, nn.LayerNorm, nn.RMSNorm, Saturating])
def test_qk_norm_per_head(norm, rope, position, fused):
    anatomy = read_anatomy(Decoder(["pre"] * 2, norm=norm, qk="head", rope=rope, fused=fused))
    assert (anatomy.qk_norm, anatomy.qk_norm_position) == ("head", position)
    assert anatomy.attention_scale == pytest.approx(1 / math.sqrt(WIDTH))


@pytest.mark.parametrize("fused", [False, True])
def test_qk_norm_over_all_heads(fused):
    anatomy = read_anatomy(Decoder(["output"] * 2, qk="full", rope="after", fused=fused))
    assert (anatomy.norm_placement, anatomy.qk_norm, anatomy.qk_norm_position) == ("output", "full", "pre_rope")


def test_rotation_alone_is_no_norm():
    assert read_anatomy(Decoder(["pre"] * 2, rope="after")).qk_norm == "none"


def test_cosine_attention():
    model = Decoder(["pre"] * 2)
    for block in model.blocks:
        block.attention.nq = block.attention.nk = Unit(WIDTH)
    assert read_anatomy(model).qk_norm == "l2"


def test_soft_cap_is_read_as_a_number():
    anatomy = read_anatomy(Decoder(["peri"] * 2, cap=30.0))
    assert anatomy.soft_cap == 30.0
    assert anatomy.attention_scale == pytest.approx(1 / math.sqrt(WIDTH))


@pytest.mark.parametrize("function, kind", [(torch.tanh, "dyt"), (torch.erf, "derf")])
def test_saturating_layers_stand_in_for_norms(function, kind):
    anatomy = read_anatomy(Decoder(["pre"] * 2, norm=lambda d: Saturating(d, function)))
    assert (anatomy.norm_placement, anatomy.norm_kind, anatomy.final_norm) == ("pre", kind, True)


@pytest.mark.parametrize("norm, kind", [(nn.LayerNorm, "layernorm"), (nn.RMSNorm, "rmsnorm"), (Rms, "rmsnorm")])
def test_norm_kinds(norm, kind):
    assert read_anatomy(Decoder(["pre"], norm=norm)).norm_kind == kind


def test_rms_norm_by_way_of_a_vector_norm():
    class Scaled(Unit):
        def forward(self, x):
            return super().forward(x) * math.sqrt(x.shape[-1])

    assert read_anatomy(Decoder(["pre"] * 2, norm=Scaled)).norm_kind == "rmsnorm"


def test_a_norm_of_the_latent_is_no_qk_norm():
    anatomy = read_anatomy(Decoder(["pre"] * 2, latent=True))
    assert (anatomy.latent_norm, anatomy.qk_norm) == (True, "none")


def test_cross_attention_is_told_apart():
    model = nn.Transformer(D, HEADS, 2, 3, 32, batch_first=True)
    anatomy = read_anatomy(model, (torch.randn(2, 5, D), torch.randn(2, 4, D)))
    assert [call.cross for call in anatomy.attention_calls] == [False] * 2 + [False, True] * 3
    assert anatomy.n_layers == 5


@pytest.mark.parametrize("norm_first, placement", [(True, "pre"), (False, "post")])
@pytest.mark.parametrize("example", [None, EXAMPLE, (EXAMPLE,), [EXAMPLE], {"src": EXAMPLE}])
def test_torch_encoder(norm_first, placement, example):
    layer = nn.TransformerEncoderLayer(D, HEADS, 32, norm_first=norm_first, batch_first=True)
    anatomy = read_anatomy(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval(), example)
    assert (anatomy.norm_placement, anatomy.n_layers, anatomy.n_attention) == (placement, 3, 3)
    assert (anatomy.n_heads, anatomy.d_head, anatomy.final_norm) == (HEADS, WIDTH, False)


def test_tied_parameters_count_once():
    model = Decoder(["pre"])
    assert read_anatomy(model).n_parameters == sum(p.numel() for p in set(model.parameters()))


def test_the_meta_device_is_enough():
    with torch.device("meta"):
        anatomy = read_anatomy(Decoder(["peri"] * 3, qk="head", cap=20.0))
    assert (anatomy.norm_placement, anatomy.qk_norm, anatomy.soft_cap) == ("peri", "head", 20.0)


def test_wrappers_and_compiled_blocks():
    model = Decoder(["pre"] * 2)
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    anatomy = read_anatomy(nn.DataParallel(model))
    assert anatomy.layers == ("blocks.0", "blocks.1")
    assert [call.module for call in anatomy.attention_calls] == ["blocks.0.attention", "blocks.1.attention"]


class Hidden(torch.autograd.Function):
    """As custom kernels do, it fills memory behind PyTorch's back."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        out.numpy()[...] = x.numpy() / x.square().mean(-1, keepdim=True).sqrt().numpy()
        return out


class Kernel(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return Hidden.apply(x)


def test_a_norm_in_a_custom_kernel_is_known_by_what_it_does():
    anatomy = read_anatomy(Decoder(["pre"] * 2, norm=Kernel))
    assert (anatomy.norm_placement, anatomy.norm_kind, anatomy.final_norm) == ("pre", "rmsnorm", True)
    assert anatomy.uncertain == ()


class Sorted(Hidden):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        out.numpy()[...] = np.sort(x.numpy(), -1)
        return out


class SortingKernel(Kernel):
    def forward(self, x):
        return Sorted.apply(x)


def test_what_a_custom_kernel_hides_is_said():
    model = Decoder(["pre"] * 2)
    model.blocks[0].before[0] = SortingKernel(D)
    anatomy = read_anatomy(model)
    assert anatomy.n_layers == anatomy.n_attention == 2
    assert {"norm_placement", "qk_norm"} <= set(anatomy.uncertain)
    assert any("blocks.0.before.0" in note for note in anatomy.notes)


class Untidy(Decoder):
    """Does in its forward all that a reading must not leave behind."""

    def __init__(self):
        super().__init__(["pre"] * 2)
        self.register_buffer("seen", torch.zeros(1))
        self.statistics, self.cache, self.dropout = nn.BatchNorm1d(D), [], nn.Dropout(0.5)
        self.blocks[0].eval()

    def forward(self, tokens):
        self.seen += 1
        self.cache.append(tokens)
        self.last = tokens
        torch.rand(3)
        self.statistics(self.embed(tokens).flatten(0, 1))
        return self.dropout(super().forward(tokens))


def test_reading_changes_nothing():
    model = Untidy()
    before, flags = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    attributes, random = set(vars(model)), torch.get_rng_state()
    anatomy = read_anatomy(model, torch.zeros(2, 6, dtype=torch.long))
    assert anatomy.n_layers == 2
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert flags == [m.training for m in model.modules()]
    assert (set(vars(model)), model.cache) == (attributes, [])
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not torch.nn.modules.module._global_forward_hooks and not torch.nn.modules.module._global_forward_pre_hooks
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_failing_forward_leaves_the_model_as_it_was():
    class Broken(Untidy):
        def forward(self, tokens):
            super().forward(tokens)
            raise RuntimeError("no such luck")

    model = Broken()
    anatomy = read_anatomy(model, torch.zeros(2, 6, dtype=torch.long))
    assert anatomy.norm_placement is None
    assert "no such luck" in anatomy.notes[0] and "example_inputs" in anatomy.notes[0]
    assert anatomy.layers == ("blocks.0", "blocks.1")
    assert model.seen.item() == 0 and model.cache == [] and model.training


@pytest.mark.parametrize("model", [nn.Linear(3, 3), nn.Identity(), mlp(), nn.LSTM(4, 4), nn.Module(), nn.ModuleList()])
def test_other_models_are_read_without_an_error(model):
    anatomy = read_anatomy(model)
    assert not anatomy.n_attention and anatomy.notes


def test_what_is_no_model_is_refused():
    with pytest.raises(BadInput, match="torch.nn.Module"):
        read_anatomy("gpt2")


def test_drawing():
    calls = [AttentionCall(0, "b.0", 2, 8, "head", "pre_rope", 50.0, 0.25)] * 2
    branches = [SubLayer(i, "attention", "a", "peri", "rmsnorm") for i in range(2)]
    branches += [SubLayer(2, "feed_forward", "m", "post", "layernorm")]
    anatomy = Anatomy("peri", "rmsnorm", final_norm=True, n_layers=3, sub_layers=tuple(branches))
    anatomy = replace(anatomy, attention_calls=tuple(calls))
    assert draw(anatomy).splitlines() == [
        "peri: x + N(F(N(x)))   (blocks 3)",
        "",
        "  x",
        "  │",
        "  │  ┌─ blocks 0–1  ×2",
        "  ├──▶ rmsnorm ─▶ attention ─▶ rmsnorm ─┐",
        "  ⊕◀────────────────────────────────────┘",
        "  │  └─",
        "  │",
        "  │  ┌─ block 2",
        "  ├──▶ feed-forward ─┐",
        "  ⊕◀─────────────────┘",
        "  ● layernorm",
        "  │  └─",
        "  ● rmsnorm (final)",
        "  ▼",
        "",
        "q·k: project ─▶ QK-Norm (head, before rotation) ─▶ q·kᵀ × 0.25 ─▶ soft-cap 50 ─▶ softmax",
    ]


def test_drawing_folds_what_repeats_without_blocks():
    pair = (SubLayer(None, "attention", "a", "pre", "rmsnorm"), SubLayer(None, "feed_forward", "m", "pre", "rmsnorm"))
    lines = draw(Anatomy("pre", "rmsnorm", sub_layers=pair * 3)).splitlines()
    assert "  │  ┌─ outside the blocks  ×3" in lines
    assert sum("⊕" in line for line in lines) == 2


def test_drawing_nothing():
    assert draw(Anatomy(notes=("not read: why",))) == "No residual branch was observed.\nnot read: why"
