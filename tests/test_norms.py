"""Norm layers against their formulas in float64, against the layers of other libraries, and by their invariances."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from norm_cases import D, randomised, rms, tokens, without_types  # noqa: F401
from torch import nn
from torch.utils.checkpoint import checkpoint

from stabilitylens import norms
from stabilitylens.errors import BadInput
from stabilitylens.norms import NORMS, make_norm

FORMULAS = {
    "layer_norm": lambda m, x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt() * m.weight + m.bias,
    "rms_norm": lambda m, x: x / (rms(x) + 1e-6).sqrt() * m.weight,
    "p_rms_norm": lambda m, x: x / (rms(x[..., :1]) + 1e-8).sqrt() * m.weight,
    "scale_norm": lambda m, x: m.g * x / x.norm(dim=-1, keepdim=True),
    "dyt": lambda m, x: m.weight * torch.tanh(m.alpha * x) + m.bias,
    "derf": lambda m, x: m.weight * torch.erf(m.alpha * x + m.shift) + m.bias,
    "group_norm": lambda m, x: F.group_norm(x.flatten(0, 1), 1, m.weight, m.bias).view_as(x),
    "batch_norm": lambda m, x: F.batch_norm(x.flatten(0, 1), None, None, m.weight, m.bias, True).view_as(x),
    "adaptive_norm": lambda m, x: m.weight * x * rms(x).add(1e-6).pow(-m.strength_of(x) / 2),
}


@pytest.mark.parametrize("name", NORMS.names())
def test_formula(name):
    layer, x = randomised(make_norm(name, D).double()), tokens(2, 5, D)
    assert torch.allclose(layer(x), FORMULAS[name](layer, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NORMS.names())
def test_gradients(name):
    layer, x = randomised(make_norm(name, 6).double()), tokens(2, 3, 6).requires_grad_()
    parameters = list(layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *parameters))
    assert torch.autograd.gradgradcheck(lambda x, *_: layer(x), (x, *parameters))


@pytest.mark.parametrize("name", NORMS.names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtype_stays_and_rounds_once(name, dtype):
    layer, x = randomised(make_norm(name, D)), tokens(2, 5, D).to(dtype)
    exact = layer.double()(x.double())
    layer = layer.to(dtype)
    out = layer(x)
    assert out.dtype is dtype and out.shape == x.shape
    assert torch.allclose(out.double(), exact, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", NORMS.names())
@pytest.mark.parametrize("rows", [0, 1])
def test_no_token_and_one_feature(name, rows):
    layer = make_norm(name, 1)
    x = torch.full((rows, 3, 1), 2.0, requires_grad=True)
    out = layer(x)
    assert out.shape == x.shape and torch.isfinite(out).all()
    out.sum().backward()


@pytest.mark.parametrize("name", NORMS.names())
def test_page(name):
    page = NORMS[name].__doc__
    for part in ("Formula:", "Source:", "Defaults:", "Known failure:", "Args:"):
        assert part in page, part


@pytest.mark.parametrize("layer", [*(norms.PLACEMENTS[n] for n in norms.PLACEMENTS.names()), norms.SoftCap, norms.DepthScaledNorm, norms.QKNorm])
def test_page_of_a_placement_or_wrapper(layer):
    for part in ("Formula:", "Source:", "Defaults:", "Known failure:"):
        assert part in layer.__doc__, part


@pytest.mark.parametrize("name", NORMS.names())
@pytest.mark.parametrize("shape", [(D,), (5, D), (2, 5, D), (2, 3, 5, D), (0, D), (2, 0, D)])
def test_any_number_of_axes_keeps_its_shape(name, shape, untyped):
    layer, x = randomised(make_norm(name, D).double()), tokens(*shape)
    if name == "batch_norm" and len(shape) == 1:
        with pytest.raises(BadInput, match="axis of tokens"):
            layer(x)
        return
    assert layer(x).shape == shape
    if x.numel():
        assert torch.allclose(layer(x), FORMULAS[name](layer, x.reshape(1, -1, D)).view(shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NORMS.names())
@pytest.mark.parametrize("d", [0, -1, "8", 8.0, True])
def test_a_width_that_is_none_is_said_in_a_sentence(name, d, untyped):
    with pytest.raises(BadInput, match="width"):
        make_norm(name, d)


@pytest.mark.parametrize("name", NORMS.names())
@pytest.mark.parametrize("x", [torch.ones(2, 1), torch.ones(2, 9), torch.ones(2, 8, dtype=torch.long), torch.tensor(1.0), torch.ones(2, 8, dtype=torch.bool)])
def test_input_of_another_width_or_of_integers_is_said_in_a_sentence(name, x, untyped):
    with pytest.raises(BadInput, match="this norm is 8 wide|floating-point"):
        make_norm(name, 8)(x)


@pytest.mark.parametrize(("over", "q", "k"), [("head", (2, 4, 3, 1), (2, 4, 3, 8)), ("head", (2, 4, 3, 8), (2, 4, 3, 9)), ("full", (2, 3, 3, 8), (2, 2, 3, 8))])
def test_queries_and_keys_of_another_width_are_said_in_a_sentence(over, q, k, untyped):
    with pytest.raises(BadInput, match="wide"):
        norms.QKNorm(8, over, heads=4, kv_heads=2)(torch.ones(q), torch.ones(k))


def test_fp32_weights_on_16_bits_give_what_the_page_says():
    x = tokens(2, 5, D).bfloat16()
    wide = {name for name in NORMS.names() if make_norm(name, D)(x).dtype is torch.float32}
    assert wide == {"rms_norm", "p_rms_norm"}
    assert norms.RMSNorm(D, rounding="gemma")(x).dtype is norms.RMSNorm(D, rounding="fp32")(x).dtype is torch.bfloat16


def test_rms_norm_rounding_modes_are_those_of_the_models():
    transformers = pytest.importorskip("transformers")
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

    assert transformers
    x = tokens(64, 256).bfloat16()
    outs = {}
    for mode, cls in (("llama", LlamaRMSNorm), ("gemma", Gemma2RMSNorm), ("fp32", Olmo2RMSNorm)):
        theirs = randomised(cls(256, eps=1e-6)).bfloat16()
        ours = norms.RMSNorm(256, rounding=mode).bfloat16()
        ours.load_state_dict(theirs.state_dict())
        outs[mode] = ours(x)
        assert torch.equal(outs[mode], theirs(x))
    ours = norms.RMSNorm(256, rounding="fp32").bfloat16()
    llama = randomised(norms.RMSNorm(256)).bfloat16()
    ours.load_state_dict(llama.state_dict())
    share = (ours(x) != llama(x)).float().mean()
    assert 0.1 < share < 0.4, "the modes differ in about a quarter of the elements"


@given(
    scale=st.floats(0.01, 100),
    name=st.sampled_from(["layer_norm", "rms_norm", "p_rms_norm", "scale_norm", "group_norm"]),
    eps=st.sampled_from([0.0, 1e-12, 1e-6]),
)
@settings(max_examples=80)
def test_size_of_a_token_does_not_matter(scale, name, eps):
    """But for ε, which is added to a mean square: at a scale of s it counts as ε/s² does at 1.

    p_rms_norm's mean is of one element here, as small as 0.07, which shows ε most; scale_norm's ε is a least length, and bounds none.
    """
    scaled, plain = (randomised(make_norm(name, D, eps=e).double()) for e in (eps, eps / scale**2))
    x = tokens(4, 3, D)
    assert torch.allclose(scaled(scale * x), plain(x), rtol=1e-9, atol=1e-9)


@given(shift=st.floats(-50, 50))
@settings(max_examples=20)
def test_layer_norm_takes_no_notice_of_a_shift(shift):
    layer, x = make_norm("layer_norm", D).double(), tokens(4, D)
    assert torch.allclose(layer(x + shift), layer(x), atol=1e-9)


def test_group_norm_over_positions_is_that_of_images():
    layer, x = randomised(norms.GroupNorm(64, groups=4, per_token=False).double()), tokens(3, 7, 64)
    want = F.group_norm(x.transpose(1, 2), 4, layer.weight, layer.bias).transpose(1, 2)
    assert torch.allclose(layer(x), want)


def padded():
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    x = tokens(2, 5, 64)
    other = torch.where(mask[..., None], x, 1e3)
    return x, other, mask


@pytest.mark.parametrize("layer", [norms.BatchNorm(64), norms.GroupNorm(64, per_token=False)])
def test_padding_moves_nothing(layer):
    layer = layer.double()
    x, other, mask = padded()
    assert torch.allclose(layer(x, mask)[mask], layer(other, mask)[mask])
    assert not torch.allclose(layer(x)[mask], layer(other)[mask])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("make", [lambda: norms.BatchNorm(64), lambda: norms.GroupNorm(64, per_token=False), lambda: norms.GroupNorm(64)])
def test_nothing_that_is_not_finite_leaves_padding(make, bad):
    layer = randomised(make().double())
    x, _, mask = padded()
    grads = []
    for filling in (0.0, bad):
        leaf = torch.where(mask[..., None], x, filling).requires_grad_()
        out = layer(leaf, mask)[mask]
        grads.append([out, *torch.autograd.grad(out.sin().sum(), [leaf, *layer.parameters()])])
    assert all(torch.isfinite(g).all() and torch.allclose(g, h) for g, h in zip(*grads, strict=True))


def test_what_is_not_finite_in_a_real_token_is_not_hidden():
    x, _, mask = padded()
    x[0, 0, 0] = math.nan
    for layer in (norms.BatchNorm(64).double(), norms.GroupNorm(64, per_token=False).double()):
        assert not torch.isfinite(layer(x, mask)[mask]).all()


@pytest.mark.parametrize("mask", [torch.ones(5, 2, dtype=torch.bool), torch.ones(2, 5)])
@pytest.mark.parametrize("layer", [norms.BatchNorm(64), norms.GroupNorm(64, per_token=False), norms.GroupNorm(64)])
def test_a_mask_of_another_shape_or_dtype_is_said_in_a_sentence(layer, mask, untyped):
    with pytest.raises(BadInput, match="mask"):
        layer(tokens(2, 5, 64), mask)


def test_group_norm_over_positions_takes_more_axes_of_batches(untyped):
    layer, x = randomised(norms.GroupNorm(64, groups=4, per_token=False).double()), tokens(2, 3, 7, 64)
    assert torch.allclose(layer(x), layer(x.flatten(0, 1)).view_as(x))
    assert torch.allclose(layer(x[0, 0]), layer(x[0])[0]), "one sequence alone"
    with pytest.raises(BadInput, match="positions"):
        layer(x[0, 0, 0])


@pytest.mark.parametrize("layer", [norms.BatchNorm(64), norms.GroupNorm(64, per_token=False)])
def test_masks_compile_without_a_graph_break(layer, untyped):
    layer = layer.double()
    other = copy.deepcopy(layer)
    x, _, mask = padded()
    assert torch.allclose(torch.compile(layer, fullgraph=True, backend="eager")(x, mask), other(x, mask))
    assert all(torch.allclose(a, b) for a, b in zip(layer.buffers(), other.buffers(), strict=True))


def test_batch_norm_loads_and_gives_the_state_of_torch():
    ours, theirs = norms.BatchNorm(8), nn.BatchNorm1d(8)
    theirs(torch.randn(4, 8))
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.running_var, theirs.running_var) and ours.num_batches_tracked == 1
    ours(torch.randn(4, 8))
    theirs.load_state_dict(ours.state_dict())
    assert theirs.num_batches_tracked == 2
    ours.load_state_dict({k: v for k, v in ours.state_dict().items() if k != "num_batches_tracked"})


@pytest.mark.parametrize("make", [norms.BatchNorm, nn.BatchNorm1d])
def test_running_averages_move_twice_under_checkpointing_as_the_page_says(make):
    layer = make(8)
    checkpoint(layer, torch.randn(4, 8, requires_grad=True), use_reentrant=False).sum().backward()
    assert layer.num_batches_tracked == 2
    assert "checkpointing" in norms.BatchNorm.__doc__


def test_batch_norm_keeps_averages_as_torch_does():
    ours, theirs = norms.BatchNorm(64).double(), nn.BatchNorm1d(64).double()
    x, _, mask = padded()
    for _ in range(3):
        ours(x, mask)
        theirs(x[mask])
    assert torch.allclose(ours.running_var, theirs.running_var) and torch.allclose(ours.running_mean, theirs.running_mean)
    ours.eval()
    assert torch.allclose(ours(x)[mask], theirs.eval()(x[mask]))


def test_batch_norm_of_padding_alone_uses_the_averages():
    layer = norms.BatchNorm(4)
    out = layer(torch.ones(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool))
    assert torch.isfinite(out).all() and torch.equal(layer.running_mean, torch.zeros(4))


@given(strength=st.floats(-6, 6))
@settings(max_examples=20)
def test_adaptive_norm_lets_through_the_size_it_is_told_to(strength):
    layer = norms.AdaptiveNorm(D, strength=strength, eps=0.0).double()
    x = tokens(5, D)
    s = 1 / (1 + math.exp(-strength))
    assert torch.allclose(rms(layer(x)).sqrt(), rms(x).sqrt() ** (1 - s), rtol=1e-6)
    assert layer.strength_of(x).shape == (5, 1)


@pytest.mark.parametrize("over", ["head", "full"])
def test_qk_norm_bounds_the_logits(over):
    layer = norms.QKNorm(8, over, heads=4, kv_heads=2)
    q, k = tokens(2, 4, 5, 8, dtype=torch.float32, scale=100.0), tokens(2, 2, 5, 8, dtype=torch.float32, scale=100.0)
    a, b = layer(q, k)
    assert a.shape == q.shape and b.shape == k.shape
    bound = 8 if over == "head" else 8 * math.sqrt(4 * 2)
    assert (a @ b.repeat_interleave(2, 1).transpose(-1, -2)).abs().max() <= bound * (1 + 1e-5)


def test_qk_norm_over_all_heads_is_a_norm_of_the_projection():
    layer = randomised(norms.QKNorm(8, "full", heads=4, kv_heads=2))
    flat = tokens(2, 5, 32, dtype=torch.float32)
    want = layer.q_weight * flat * torch.rsqrt(rms(flat) + 1e-6)
    q, _ = layer(flat.unflatten(-1, (4, 8)).transpose(1, 2), tokens(2, 2, 5, 8, dtype=torch.float32))
    assert torch.allclose(q.transpose(1, 2).flatten(2), want)


@given(cap=st.floats(0.5, 100), x=st.floats(-1e4, 1e4))
def test_soft_cap_keeps_order_sign_and_bound(cap, x):
    out = norms.SoftCap(cap)(torch.tensor([x, x + 1.0], dtype=torch.float64))
    assert out.abs().max() <= cap and out[1] >= out[0] and (out[0] * x >= 0)
