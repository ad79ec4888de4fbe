"""Attention statistics against a slow oracle in float64 that is given the q and k that entered attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stabilitylens.kernels import attention_statistics
from stabilitylens.kernels.attention_statistics import Visibility
from stabilitylens.moments import AttentionMoments, KeyValueMoments


@dataclass
class Oracle:
    """Per head, in float64, row by row as the definitions have it."""

    largest: Tensor
    lse: Tensor
    entropy: Tensor
    ratio: Tensor
    rows: Tensor
    masked: Tensor


def oracle(q: Tensor, k: Tensor, scale: float, visible: Tensor, bias: Tensor | float = 0.0, padded=None) -> Oracle:
    groups = q.shape[1] // k.shape[1]
    raw = scale * q.double() @ k.double().repeat_interleave(groups, 1).transpose(-1, -2)
    visible = visible.expand(raw.shape)
    count = visible.sum(-1)
    s = (raw + bias).masked_fill(~visible, -math.inf)
    used = count > 0
    masked = (~used).sum((0, 2))
    if padded is not None:
        used = used & ~padded[:, None, :]
    p = s[used].softmax(-1)
    entropy = torch.zeros(used.shape, dtype=torch.float64)
    entropy[used] = torch.special.entr(p).sum(-1)
    lse = torch.zeros_like(entropy)
    lse[used] = s[used].logsumexp(-1)
    many = used & (count > 1)
    ratio = torch.where(many, entropy / count.clamp(min=2).double().log(), 0.0)
    rows = used.sum((0, 2)).double()
    largest = raw.masked_fill(~(visible & used[..., None]), -math.inf).amax((0, 2, 3))
    return Oracle(largest, lse.sum((0, 2)) / rows, entropy.sum((0, 2)) / rows, ratio.sum((0, 2)) / many.sum((0, 2)), rows, masked)


def close(got: AttentionMoments, want: Oracle) -> None:
    assert got.rows == pytest.approx(want.rows.numpy())
    assert got.masked_rows == pytest.approx(want.masked.numpy())
    assert got.max_logit == pytest.approx(want.largest.numpy(), rel=1e-4, abs=1e-5)
    assert got.sum_lse / got.rows == pytest.approx(want.lse.numpy(), rel=1e-4, abs=1e-5)
    assert got.sum_entropy / got.rows == pytest.approx(want.entropy.numpy(), abs=1e-4)
    if (got.rows_gt1 > 0).all():
        assert got.sum_entropy_ratio / got.rows_gt1 == pytest.approx(want.ratio.numpy(), abs=1e-4)


def statistics(q, k, v, mask=None, causal=False, soft_cap=None, sinks=None, **kwargs):
    view = replace(Visibility.of(mask, causal), sinks=sinks)
    heads, kv_heads = attention_statistics(q, k, v, scale=q.shape[-1] ** -0.5, view=view, soft_cap=soft_cap, **kwargs)
    return AttentionMoments.from_rows(heads.numpy()), KeyValueMoments.from_rows(kv_heads.numpy())


def tensors(batch, heads, kv_heads, length, d, size, dtype=torch.float32):
    """q, k and v whose largest logit is about ``size``."""
    q = torch.randn(batch, heads, length, d)
    k, v = torch.randn(2, batch, kv_heads, length, d)
    raw = q @ k.repeat_interleave(heads // kv_heads, 1).transpose(-1, -2) * d**-0.5
    grow = (size / raw.abs().amax()) ** 0.5
    return (q * grow).to(dtype), (k * grow).to(dtype), v.to(dtype)


def causal_mask(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


@pytest.mark.parametrize("size", [0.5, 30, 1e4])
@pytest.mark.parametrize("length", [1, 2, 31, 33, 128, 512])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_causal_grouped_queries(length, kv_heads, size):
    torch.manual_seed(length)
    q, k, v = tensors(2, 4, kv_heads, length, 16, size)
    close(statistics(q, k, v, causal=True)[0], oracle(q, k, 0.25, causal_mask(length)))


@pytest.mark.parametrize("kind", ["bool", "-inf", "finfo.min", "-10000"])
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_padding_and_sliding_window_leave_padded_queries_out(kind, size):
    torch.manual_seed(1)
    n = 40
    q, k, v = tensors(3, 4, 2, n, 16, size)
    k[0, :, 30:] *= 100  # a padded key with a large norm must not be the largest logit
    keys = torch.ones(3, n, dtype=torch.bool)
    keys[0, 30:] = False
    keys[1, :7] = False
    window = causal_mask(n) & ~causal_mask(n).tril(-9)
    visible = (window & keys[:, None, :])[:, None]
    hide = {"-inf": -math.inf, "finfo.min": torch.finfo(torch.float32).min, "-10000": -1e4}
    mask = visible if kind == "bool" else torch.zeros(visible.shape).masked_fill(~visible, hide[kind])
    got, kv = statistics(q, k, v, mask, self_attention=True)
    close(got, oracle(q, k, 0.25, visible, padded=~keys))
    norms = k.double().norm(dim=-1)
    assert kv.sum_key_norm / kv.rows == pytest.approx([norms[:, h][keys].mean().item() for h in range(2)], rel=1e-6)


def test_equal_lengths_are_no_self_attention_and_leave_no_query_out():
    torch.manual_seed(1)
    q, k, v = tensors(3, 4, 2, 24, 16, 3.0)
    keys = torch.ones(3, 24, dtype=torch.bool)
    keys[0, 15:] = False
    visible = keys[:, None, None, :].expand(3, 1, 24, 24)
    close(statistics(q, k, v, visible)[0], oracle(q, k, 0.25, visible))


def sink_oracle(q: Tensor, k: Tensor, visible: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Mean entropy and ratio per head, in float64, of the softmax over keys and sinks, of rows that see a key."""
    raw = q.shape[-1] ** -0.5 * q.double() @ k.double().transpose(-1, -2)
    full = torch.cat((raw.masked_fill(~visible, -math.inf), sinks.double().expand(*raw.shape[:3], -1)), -1)
    entropy, used = torch.special.entr(full.softmax(-1)).sum(-1), visible.any(-1).expand(raw.shape[:3])
    ratio = entropy / (visible.sum(-1) + sinks.shape[-1]).clamp(min=2).double().log()
    return tuple((x * used).sum((0, 2)) / used.sum((0, 2)) for x in (entropy, ratio))


@pytest.mark.parametrize("size", [1.0, 30.0, 2e3])
@pytest.mark.parametrize("n_sinks", [1, 3])
def test_a_sink_is_an_outcome_of_the_softmax_beside_the_keys(n_sinks, size):
    torch.manual_seed(8)
    q, k, v = tensors(2, 4, 4, 33, 8, size)
    sinks = size * torch.randn(1, 4, 1, n_sinks)
    visible = causal_mask(33).expand(2, 1, 33, 33).clone()
    visible[1, :, :4] = False  # rows that see the sink alone
    got, _ = statistics(q, k, v, visible, sinks=sinks)
    entropy, ratio = sink_oracle(q, k, visible, sinks)
    assert got.sum_entropy / got.rows == pytest.approx(entropy.numpy(), abs=1e-4)
    assert got.sum_entropy_ratio / got.rows_gt1 == pytest.approx(ratio.numpy(), abs=1e-4)
    assert got.max_logit == pytest.approx(statistics(q, k, v, visible)[0].max_logit), "a sink is no query's product with a key"
    assert got.rows.tolist() == [62] * 4 and got.masked_rows.tolist() == [0] * 4, "a softmax with a sink is no 0/0"


def test_fully_masked_rows_are_counted_and_are_in_nothing_else():
    torch.manual_seed(2)
    q, k, v = tensors(2, 2, 2, 16, 8, 3.0)
    visible = causal_mask(16).clone()
    visible[5] = False
    got, _ = statistics(q, k, v, visible)
    assert got.masked_rows.tolist() == [2, 2]
    close(got, oracle(q, k, 8**-0.5, visible))


def test_a_call_in_which_every_row_is_masked_observed_nothing():
    q, k, v = tensors(1, 2, 2, 4, 8, 3.0)
    got, _ = statistics(q, k, v, torch.zeros(4, 4, dtype=torch.bool))
    assert got.rows.tolist() == [0, 0]
    assert (got.max_logit == -math.inf).all()


def test_cross_attention_and_top_left_causal_alignment():
    torch.manual_seed(3)
    q, k, v = torch.randn(2, 2, 5, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    close(statistics(q, k, v)[0], oracle(q, k, 8**-0.5, torch.ones(5, 9, dtype=torch.bool)))
    causal = torch.ones(5, 9, dtype=torch.bool).tril()
    got, kv = statistics(q, k, v, causal=True)
    close(got, oracle(q, k, 8**-0.5, causal))
    assert kv.rows.tolist() == [10, 10]  # keys 5 to 8 are seen by no query


def test_additive_bias_is_in_the_entropy_and_not_in_the_largest_logit():
    torch.manual_seed(4)
    q, k, v = tensors(2, 4, 4, 24, 8, 2.0)
    distance = torch.arange(24)[None, :] - torch.arange(24)[:, None]
    bias = 0.5 ** torch.arange(1, 5)[:, None, None] * distance.clamp(max=0)
    mask = bias.masked_fill(distance > 0, -math.inf)[None]
    close(statistics(q, k, v, mask)[0], oracle(q, k, 8**-0.5, causal_mask(24), bias=bias))


def test_soft_cap_bounds_the_entropy_and_leaves_the_logit_before_it():
    torch.manual_seed(5)
    q, k, v = tensors(1, 2, 2, 32, 8, 100.0)
    raw = 8**-0.5 * q.double() @ k.double().transpose(-1, -2)
    bias = 5 * (raw / 5).tanh() - raw
    close(statistics(q, k, v, causal=True, soft_cap=5.0)[0], oracle(q, k, 8**-0.5, causal_mask(32), bias=bias))


def test_bf16_and_fp16_inputs_are_exact_for_the_values_they_hold():
    torch.manual_seed(6)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        q, k, v = tensors(1, 2, 1, 65, 16, 50.0, dtype)
        close(statistics(q, k, v, causal=True)[0], oracle(q, k, 0.25, causal_mask(65)))


def test_a_nan_query_shows_in_its_head_alone():
    q, k, v = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4)
    q[0, 1, 3] = math.nan
    got, _ = statistics(q, k, v, causal=True)
    assert math.isfinite(got.max_logit[0])
    assert math.isnan(got.sum_entropy[1])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 48), d=st.sampled_from([1, 4, 32]), size=st.floats(1e-3, 1e4), seed=st.integers(0, 10**6),
    causal=st.booleans(),
)
def test_bounds_that_hold_for_any_attention(n, d, size, seed, causal):
    torch.manual_seed(seed)
    q, k, v = tensors(1, 2, 1, n, d, size)
    got, _ = statistics(q, k, v, causal=causal)
    assert (got.sum_entropy >= -1e-4 * got.rows).all()
    assert (got.sum_entropy_ratio <= got.rows_gt1 * (1 + 1e-5)).all()
    assert (got.sum_lse / got.rows <= got.max_logit + math.log(n) + 1e-4 * size).all()


def test_uniform_attention_has_ratio_one_at_every_length():
    for n in (16, 256):
        q, k, v = torch.zeros(1, 1, n, 8), torch.randn(1, 1, n, 8), torch.randn(1, 1, n, 8)
        got, _ = statistics(q, k, v, causal=True)
        assert got.sum_entropy_ratio / got.rows_gt1 == pytest.approx(1.0)
        visible = torch.arange(1, n + 1).double()
        assert got.sum_entropy / got.rows == pytest.approx(visible.log().mean().item())


def test_the_softmax_of_torch_is_what_the_entropy_is_of():
    q, k, v = torch.randn(3, 2, 3, 20, 8)
    weights = F.scaled_dot_product_attention(q, k, torch.eye(20).expand(2, 3, 20, 20), is_causal=True)
    got, _ = statistics(q, k, v, causal=True)
    entropy = torch.special.entr(weights.double()).sum(-1).sum((0, 2))
    assert got.sum_entropy == pytest.approx(entropy.numpy(), rel=1e-5)
