"""Anatomy is read off the dataflow of hand-written models."""

import math

import pytest
import torch
from anatomy_models import EXAMPLE, HEADS, WIDTH, D, Decoder, Rms, Saturating, Unit
from torch import nn

from stabilitylens.hooks.anatomy import read_anatomy


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


class Streams(Decoder):
    """Hyper-connections: several streams, weighed into each branch, out of it, and where asked with each other."""

    def __init__(self, mixing, count=4, blocks=3):
        super().__init__(["pre"] * blocks)
        self.mixing, self.count = mixing, count
        self.weigh = nn.ModuleList([nn.Linear(count * D, count * (2 + count)) for _ in range(2 * blocks)])

    def forward(self, tokens):
        x = self.embed(tokens).unsqueeze(-2).repeat(1, 1, self.count, 1)
        branches = [(b.before[i], f) for b in self.blocks for i, f in enumerate((b.attention, b.mlp))]
        for weigh, (norm, branch) in zip(self.weigh, branches, strict=True):
            into, out, among = weigh(x.flatten(-2)).split((self.count, self.count, self.count**2), -1)
            branch_out = branch(norm((into.sigmoid().unsqueeze(-1) * x).sum(-2)))
            x = self.mix(among, x) + out.sigmoid().unsqueeze(-1) * branch_out.unsqueeze(-2)
        return self.head(self.final(x.mean(-2)))

    def mix(self, among, x):
        weights = among.unflatten(-1, (self.count, self.count)).exp()
        return (weights / weights.sum(-1, keepdim=True)) @ x if self.mixing else x


@pytest.mark.parametrize("mixing", [False, True])
def test_several_streams_with_weights_made_from_them(mixing):
    anatomy = read_anatomy(Streams(mixing))
    assert (anatomy.norm_placement, anatomy.final_norm, anatomy.n_layers, anatomy.n_attention) == ("pre", True, 3, 3)
    assert [s.kind for s in anatomy.sub_layers] == ["attention", "feed_forward"] * 3
    assert "norm_placement" not in anatomy.uncertain


@pytest.mark.parametrize("fused", [False, True])
def test_a_sequence_as_short_as_streams_are_many(fused):
    anatomy = read_anatomy(Decoder(["pre"] * 2, fused=fused), torch.zeros(2, 4, dtype=torch.long))
    assert (anatomy.norm_placement, anatomy.n_layers, anatomy.uncertain) == ("pre", 2, ())
