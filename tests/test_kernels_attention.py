"""Attention statistics and moments of many tensors by the kernels, in Triton's interpreter, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import backend, random

from stabilitylens.errors import BadInput
from stabilitylens.kernels import attention_statistics, moments, norm_moments, second_moments, sums_of_squares
from stabilitylens.kernels._gpu import tensors_launch
from stabilitylens.kernels.attention_statistics import Visibility
from stabilitylens.kernels.row_statistics import Spans, packed_spans, row_statistics, spans


def oracle(q, k, scale, seen: Spans, mask=None, bias=None, cap=None):
    raw = scale * q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2)
    j = torch.arange(k.shape[2])
    visible = ((j >= seen.lo[:, None]) & (j < seen.hi[:, None])).expand(raw.shape)
    visible = visible if mask is None else visible & mask
    s = raw if cap is None else cap * torch.tanh(raw / cap)
    s = (s if bias is None else s + bias.double()).masked_fill(~visible, -math.inf)
    count = visible.sum(-1)
    p = torch.nan_to_num(s.softmax(-1))
    return count, raw.masked_fill(~visible, -math.inf).amax(-1), s.logsumexp(-1), torch.special.entr(p).sum(-1), (raw * visible).sum(-1) / count


def check(q, k, scale=0.3, seen=None, limit=1e-5, **options):
    chosen = spans(q.shape[2], k.shape[2]) if seen is None else seen
    want = oracle(q, k, scale, chosen, **{{"soft_cap": "cap"}.get(n, n): v for n, v in options.items()})
    for way in ("triton", "reference"):
        with backend(way):
            got = row_statistics(q, k, scale=scale, seen=seen, **options)
        assert torch.equal(got.count, want[0].int())
        for name, exact in zip(("largest", "lse", "entropy"), want[1:], strict=False):
            torch.testing.assert_close(getattr(got, name).double(), exact, rtol=limit, atol=3 * limit, msg=lambda m: f"{way} {name}: {m}")  # noqa: B023
        if options.get("mask") is None:
            torch.testing.assert_close(got.mean.double(), want[4], rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            assert torch.isnan(got.mean).all()


def heads(queries=45, keys=45, d=24, dtype=torch.float32, scale=2.0):
    return random(2, 2, queries, d, dtype=dtype, scale=scale), random(2, 1, keys, d, dtype=dtype, seed=1)


SPANS = {
    "all": None,
    "causal": spans(45, 45, causal=True),
    "window": spans(45, 45, causal=True, window=7),
    "both sides": spans(45, 45, window=3),
    "packed": packed_spans(torch.tensor([0, 10, 11, 45]), causal=True),
    "packed whole": packed_spans(torch.tensor([0, 40, 45]), window=5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seen", SPANS)
def test_spans(seen, dtype):
    check(*heads(dtype=dtype), seen=SPANS[seen])


def test_a_subset_of_the_queries():
    q, k = heads()
    rows = torch.tensor([3, 40, 7])
    check(q[:, :, rows], k, seen=SPANS["causal"].rows(rows))


@pytest.mark.parametrize("keys", [1, 17, 80])
def test_other_numbers_of_keys(keys):
    check(*heads(45, keys), seen=spans(45, keys, causal=True))


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("shape", [(1, 1, 1, 45), (1, 2, 45, 45), (2, 1, 45, 1)])
def test_masks_biases_and_caps(shape, cap):
    q, k = heads()
    mask = random(*shape, seed=2) > -0.5
    if shape[2] > 1:
        mask[0, 0, 3] = False
    check(q, k, mask=mask, soft_cap=cap)
    check(q, k, bias=random(*shape, dtype=torch.float32, seed=3), soft_cap=cap, seen=SPANS["causal"])
    check(q, k, bias=random(*shape, dtype=torch.float32, seed=3), mask=mask)


def test_heads_that_lie_between_positions():
    q, k = heads()
    check(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)), seen=SPANS["causal"])


@given(scale=st.floats(0.01, 1000), shift=st.integers(0, 5))
@settings(max_examples=15)
def test_bounds(scale, shift):
    q, k = random(1, 1, 9, 16, dtype=torch.float32, seed=shift), random(1, 1, 9, 16, dtype=torch.float32, seed=shift + 1)
    with backend("triton"):
        got = row_statistics(q, k, scale=scale, seen=spans(9, 9, causal=True))
    n = got.count.double().log()
    slack = 1e-5 * (1 + got.largest.abs())
    assert (got.entropy >= -1e-5).all() and (got.entropy <= n + 1e-5).all()
    assert (got.largest <= got.lse + slack).all() and (got.lse <= got.largest + n + slack).all()
    assert (got.mean <= got.largest + slack).all()


def test_at_logits_of_ten_thousand_nothing_cancels():
    q, k = heads(scale=1500.0)
    seen = SPANS["causal"]
    want = oracle(q, k, 0.3, seen)
    assert want[1].max() > 1e3
    with backend("triton"):
        got = row_statistics(q, k, scale=0.3, seen=seen)
    assert (got.entropy.double() - want[3]).abs().max() < 1e-2 and (got.entropy >= 0).all()


def test_what_is_not_a_number_shows():
    q, k = heads()
    q[0, 0, 5] = torch.nan
    with backend("triton"):
        got = row_statistics(q, k, scale=0.3)
    for values in (got.largest, got.lse, got.entropy):
        assert torch.isnan(values[0, 0, 5]) and torch.isnan(values).sum() == 1


@pytest.mark.parametrize("view", [{}, {"causal": True}, {"visible": True}, {"bias": True}])
@pytest.mark.parametrize("cap", [None, 4.0])
def test_the_lens_gets_the_same_rows(view, cap):
    q, k = heads()
    v = random(2, 1, 45, 8, dtype=torch.float32)
    given_ = {"causal": view.get("causal", False)}
    if "visible" in view:
        given_["visible"] = torch.ones(2, 1, 1, 45, dtype=torch.bool)
        given_["visible"][1, 0, 0, 30:] = False
    if "bias" in view:
        given_["bias"] = random(1, 2, 45, 45, dtype=torch.float32)
    found = []
    for way in ("reference", "triton"):
        with backend(way):
            found.append(attention_statistics(q, k, v, scale=0.3, view=Visibility(**given_), soft_cap=cap))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=2e-5)


def test_input_that_makes_no_sense():
    q, k = heads()
    with pytest.raises(BadInput, match="multiple"):
        row_statistics(k, q, scale=1.0)
    with pytest.raises(BadInput, match="spans"):
        row_statistics(q, k, scale=1.0, seen=spans(44, 45))


TENSORS = [
    random(100, 333, dtype=torch.float32), random(7, dtype=torch.bfloat16), torch.empty(0), torch.tensor(3.0),
    random(30, 30, dtype=torch.float16)[:, ::2], random(5001, dtype=torch.float32)[1:], random(4, 5, dtype=torch.float32).t(),
    random(1, 5, dtype=torch.float32).expand(3, 5), torch.full((10,), 1e25), torch.tensor([1, torch.nan, 2.0]),
    torch.tensor([1, torch.inf, 2.0]), torch.tensor([-torch.inf, torch.nan, 2.0]), random(9, dtype=torch.bfloat16)[1:],
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_moments_of_many_tensors(monkeypatch):
    monkeypatch.setattr(tensors_launch, "CHUNK", 4096)
    monkeypatch.setattr(tensors_launch, "BLOCK", 512)
    for call in (lambda t: torch.stack([moments(x) for x in t]), norm_moments, sums_of_squares, lambda t: torch.stack([second_moments(x) for x in t])):
        with backend("reference"):
            want = call(TENSORS)
        with backend("triton"):
            got = call(TENSORS)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-2, equal_nan=True)


def test_none_of_many():
    with backend("triton"):
        assert sums_of_squares([]).shape == (0,) and norm_moments([]).shape == (0, 6)
        assert torch.equal(norm_moments([torch.empty(0)])[0, [0, 3]], torch.zeros(2, dtype=torch.float64))
