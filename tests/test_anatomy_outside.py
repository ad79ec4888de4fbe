"""Anatomy of models outside Hugging Face: torch.nn, x-transformers, vit-pytorch, timm, and hand-written ones."""

from functools import partial

import outside_models as own
import pytest
import torch
from torch import nn
from vision_stand_in import stand_in

from stabilitylens.hooks.anatomy import read_anatomy

TOKENS = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def check(model, example, want):
    """Compare with what is wanted, and with what is true where nothing is said."""
    anatomy = read_anatomy(model.eval(), example)
    usual = {"qk_norm": "none", "soft_cap": None, "parallel": False, "final_norm": True, "uncertain": ()}
    want = {**usual, **want}
    assert {name: getattr(anatomy, name) for name in want} == want


ZERO, SMALL = torch.zeros(1), torch.full((own.D,), 0.1)
HAND_WRITTEN = {
    "nanogpt": (dict(norm=nn.LayerNorm), dict(norm_kind="layernorm", gated=False, reads_tokens=True)),
    "torchtitan": (
        dict(attention=dict(rope=True, groups=2), feed=dict(gate=True)),
        dict(norm_kind="rmsnorm", gated=True, reads_tokens=True, n_heads=4, d_head=8, residual_scale=False),
    ),
    "qwen3": (
        dict(attention=dict(rope=True, groups=2, qk=own.Rms), feed=dict(gate=True)),
        dict(qk_norm="head", qk_norm_position="pre_rope"),
    ),
    "olmo2": (
        dict(placement="output", attention=dict(rope=True, qk=own.Rms, full=True)),
        dict(norm_placement="output", qk_norm="full", qk_norm_position="pre_rope"),
    ),
    "gemma2": (
        dict(placement="peri", attention=dict(attend=partial(own.dot_product, cap=50.0), rope=True)),
        dict(norm_placement="peri", soft_cap=50.0, residual_scale=False),
    ),
    "vit22b": (
        dict(placement="parallel", norm=nn.LayerNorm, attention=dict(qk=nn.LayerNorm)),
        dict(parallel=True, qk_norm="head", qk_norm_position="no_rope"),
    ),
    "post": (dict(placement="post", final=False), dict(norm_placement="post", final_norm=False)),
    "no norm": (
        dict(placement="none", final=False),
        dict(norm_placement="none", norm_kind=None, final_norm=False),
    ),
    "periodic": (
        dict(placement="none", every=3),
        dict(norm_placement="periodic", final_norm=False, norm_kind="rmsnorm"),
    ),
    "dyt": (dict(norm=own.Bounded), dict(norm_kind="dyt", residual_scale=False)),
    "derf": (dict(norm=partial(own.Bounded, function=torch.erf)), dict(norm_kind="derf")),
    "dyt on q and k": (
        dict(norm=own.Bounded, attention=dict(qk=own.Bounded)),
        dict(norm_kind="dyt", qk_norm="head", qk_norm_position="no_rope"),
    ),
    "functions": (
        dict(norm=own.FunctionNorm, attention=dict(linear=own.FunctionLinear, qk=own.FunctionNorm)),
        dict(norm_kind="rmsnorm", qk_norm="head"),
    ),
    "kernel norm": (
        dict(norm=own.KernelNorm, attention=dict(qk=own.KernelNorm)),
        dict(norm_kind="layernorm", qk_norm="head"),
    ),
    "op norm": (dict(norm=own.OpNorm, attention=dict(qk=own.OpNorm, full=True)), dict(qk_norm="full")),
    "op norm into": (dict(placement="peri", norm=own.OpNormInto), dict(norm_placement="peri", norm_kind="rmsnorm")),
    "op derf": (dict(norm=own.OpBounded), dict(norm_kind="derf")),
    "op attention": (dict(attention=dict(attend=own.kernel, rope=True, qk=own.Rms)), dict(qk_norm="head")),
    "op linear": (dict(attention=dict(linear=own.OpLinear), feed=dict(linear=own.OpLinear)), {}),
    "distances": (dict(attention=dict(attend=own.distances)), {}),
    "library distances": (dict(attention=dict(attend=own.library_distances)), {}),
    "spread distances": (dict(attention=dict(attend=own.spread_distances)), {}),
    "cosine": (dict(attention=dict(unit=True)), dict(qk_norm="l2", qk_norm_position="no_rope")),
    "deepnorm": (
        dict(placement="post", final=False, stream=2.5),
        dict(norm_placement="post", final_norm=False, residual_scale=True, norm_scale=None),
    ),
    "rezero": (
        dict(placement="none", final=False, branch=ZERO),
        dict(norm_placement="none", final_norm=False, residual_scale=True),
    ),
    "layerscale": (dict(branch=SMALL), dict(residual_scale=True, norm_scale=False)),
    "layerscale behind output norm": (
        dict(placement="output", branch=SMALL),
        dict(norm_placement="output", residual_scale=True),
    ),
    "layernorm scaling": (dict(lns=True), dict(norm_scale=True, residual_scale=False)),
    "sub-ln": (
        dict(norm=nn.LayerNorm, attention=dict(inner=nn.LayerNorm), feed=dict(inner=nn.LayerNorm)),
        dict(norm_kind="layernorm"),
    ),
}


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_hand_written(name):
    arguments, want = HAND_WRITTEN[name]
    depth = 8 if "every" in arguments else own.DEPTH
    counts = dict(n_layers=depth, n_attention=depth, d_model=own.D)
    check(own.Model(**arguments), TOKENS, {"norm_placement": "pre", **counts, **want})


def test_alpha_is_told():
    for norm in (own.Bounded, own.OpBounded):
        anatomy = read_anatomy(own.Model(norm=partial(norm, alpha=0.75)), TOKENS)
        assert [sub.alpha for sub in anatomy.sub_layers] == pytest.approx([0.75] * 2 * own.DEPTH, abs=1e-5)


def test_without_attention():
    model = own.Mixer()
    check(model, TOKENS, dict(n_attention=0, norm_placement="pre", norm_kind="layernorm", final_norm=False))
    assert "no attention call was found in the forward" in read_anatomy(model, TOKENS).notes


def test_normalised_gpt():
    want = dict(qk_norm="l2", norm_kind="l2", n_attention=own.DEPTH, final_norm=False, residual_scale=True, gated=True)
    check(own.NormalisedGpt(), TOKENS, want)


@pytest.mark.parametrize("dtype, told", [(torch.bfloat16, "bf16"), (torch.float32, None)])
def test_precision_of_norms(dtype, told):
    assert read_anatomy(own.Model().to(dtype), TOKENS).norm_precision == told
    fused = read_anatomy(own.Model(norm=nn.LayerNorm).to(dtype), TOKENS).norm_precision
    assert fused == (told and "fp32")


WIDE = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
LAYER = dict(d_model=32, nhead=4, dim_feedforward=64, batch_first=True)


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("norm_first, placement", [(True, "pre"), (False, "post")])
def test_torch_encoder_and_decoder(norm_first, placement, final):
    norm = nn.LayerNorm(32) if final else None
    want = dict(norm_placement=placement, final_norm=final, n_layers=3, reads_tokens=False, norm_kind="layernorm")
    encoder = nn.TransformerEncoderLayer(**LAYER, norm_first=norm_first)
    check(nn.TransformerEncoder(encoder, 3, norm, enable_nested_tensor=False), WIDE, {**want, "n_attention": 3})
    decoder = nn.TransformerDecoderLayer(**LAYER, norm_first=norm_first)
    check(nn.TransformerDecoder(decoder, 3, norm), (WIDE, WIDE), {**want, "n_attention": 6})


@pytest.mark.parametrize("norm_first, placement", [(True, "pre"), (False, "post")])
def test_torch_transformer(norm_first, placement):
    model = nn.Transformer(32, 4, 2, 2, 64, norm_first=norm_first, batch_first=True)
    check(model, (WIDE, WIDE), dict(norm_placement=placement, n_layers=4, n_attention=6))


X_TRANSFORMERS = {
    "pre": ({}, dict(norm_kind="layernorm")),
    "post": (dict(pre_norm=False), dict(norm_placement="post", final_norm=False)),
    "sandwich": (dict(sandwich_norm=True), dict(norm_placement="peri")),
    "rmsnorm": (dict(use_rmsnorm=True, ff_glu=True), dict(norm_kind="rmsnorm", gated=True)),
    "simple rmsnorm": (dict(use_simple_rmsnorm=True), dict(norm_kind="rmsnorm")),
    "scalenorm": (dict(use_scalenorm=True), {}),
    "dyt": (dict(use_dynamic_tanh=True), dict(norm_kind="dyt")),
    "derf": (dict(use_derf=True), dict(norm_kind="derf")),
    "qk norm": (dict(attn_qk_norm=True), dict(qk_norm="l2", qk_norm_position="no_rope")),
    "qk norm, rotary": (
        dict(attn_qk_norm=True, rotary_pos_emb=True, attn_flash=True),
        dict(qk_norm="l2", qk_norm_position="pre_rope"),
    ),
    "soft-clamp": (dict(attn_softclamp_logits=True, attn_logit_softclamp_value=20.0), dict(soft_cap=20.0)),
    "layerscale": (dict(use_layerscale=True), dict(residual_scale=True)),
    "scaled residual": (dict(scale_residual=True), dict(residual_scale=True)),
    "alibi": (dict(alibi_pos_bias=True), {}),
    "talking heads": (dict(attn_pre_talking_heads=True, attn_post_talking_heads=True), {}),
    "grouped": (dict(attn_kv_heads=2, attn_flash=True), {}),
    "macaron": (dict(macaron=True), {}),
    "distances": (dict(attn_l2_distance=True), {}),
    "hyper-connections": (dict(num_residual_streams=4), {}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", X_TRANSFORMERS)
def test_x_transformers(name):
    library = pytest.importorskip("x_transformers")
    arguments, want = X_TRANSFORMERS[name]
    layers = library.Decoder(dim=64, depth=3, heads=4, attn_dim_head=16, rotary_emb_dim=16, **arguments)
    model = library.TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers)
    check(model, TOKENS, {"norm_placement": "pre", "n_layers": 3, "n_attention": 3, **want})


PICTURE = dict(image_size=32, patch_size=8, num_classes=5, dim=32, depth=3, heads=4, mlp_dim=64)
VIT_PYTORCH = {
    ("vit", "ViT"): (PICTURE, {}),
    ("simple_vit", "SimpleViT"): (PICTURE, {}),
    ("simple_vit_with_qk_norm", "SimpleViT"): (PICTURE, dict(qk_norm="head", qk_norm_position="no_rope")),
    ("simple_vit_with_register_tokens", "SimpleViT"): (PICTURE, {}),
    ("simple_flash_attn_vit", "SimpleViT"): (PICTURE, dict(final_norm=False)),
    ("vit_for_small_dataset", "ViT"): (PICTURE, {}),
    ("deepvit", "DeepViT"): (PICTURE, {}),
    ("cait", "CaiT"): (dict(PICTURE, cls_depth=2), dict(n_layers=4, n_attention=5, residual_scale=True)),
    ("parallel_vit", "ViT"): (PICTURE, dict(n_attention=6)),
}


@pytest.mark.parametrize("module, name", VIT_PYTORCH)
def test_vit_pytorch(module, name):
    with stand_in():
        pytest.importorskip("vit_pytorch")
        library = pytest.importorskip(f"vit_pytorch.{module}")
    arguments, want = VIT_PYTORCH[module, name]
    counts = dict(n_layers=3, n_attention=3, norm_kind="layernorm")
    check(getattr(library, name)(**arguments), IMAGE, {"norm_placement": "pre", **counts, **want})


SMALL_VIT = dict(img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4)
TIMM = {
    "vit": ("vit_tiny_patch16_224", {}, {}),
    "qk norm": ("vit_tiny_patch16_224", dict(qk_norm=True), dict(qk_norm="head", qk_norm_position="no_rope")),
    "res-post": ("vit_tiny_patch16_224", dict(block_fn="ResPostBlock"), dict(norm_placement="output")),
    "parallel": ("vit_tiny_patch16_224", dict(block_fn="ParallelScalingBlock"), dict(parallel=True)),
    "deit3": ("deit3_small_patch16_224", {}, dict(residual_scale=True)),
    "relative": ("vit_srelpos_small_patch16_224", {}, {}),
    "beit": ("beit_base_patch16_224", {}, dict(final_norm=False)),
    "eva02": ("eva02_tiny_patch14_224", {}, dict(final_norm=False, gated=True)),
    "cait": ("cait_xxs24_224", {}, dict(n_layers=5, n_attention=5)),
    "dinov2": ("vit_small_patch14_reg4_dinov2", {}, {}),
    "aimv2": ("aimv2_large_patch14_224", {}, dict(norm_kind="rmsnorm", gated=True)),
}


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    with stand_in():
        library = pytest.importorskip("timm")
        from timm.models import vision_transformer
    kind, arguments, want = TIMM[name]
    if "block_fn" in arguments:
        arguments = {"block_fn": getattr(vision_transformer, arguments["block_fn"])}
    model = library.create_model(kind, num_classes=5, **SMALL_VIT, **arguments)
    counts = dict(n_layers=3, n_attention=3, norm_kind="layernorm")
    check(model, IMAGE, {"norm_placement": "pre", **counts, **want})


def test_swin():
    with stand_in():
        library = pytest.importorskip("timm")
    sizes = dict(img_size=64, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 2))
    image = torch.randn(2, 3, 64, 64)
    first = library.create_model("swin_tiny_patch4_window7_224", **sizes)
    check(first, image, dict(norm_placement="pre", n_layers=4, n_attention=4))
    second = library.create_model("swinv2_tiny_window8_256", **sizes)
    check(second, image, dict(norm_placement="output", qk_norm="l2", n_layers=4, n_attention=4))
