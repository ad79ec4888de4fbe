"""On published architectures: statistics of every attention call against float64, from what entered the call.

What entered is read apart from the lens: the arguments of torch's function, or of the eager function of the
model's own file, whose softmax is then computed again.
"""

from __future__ import annotations

import functools
import sys

import pytest
import torch
import torch.nn.functional as F
from test_architectures import DATA, UNSEEN, build, first_tensor, rows

import stabilitylens as sl

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.skipif(not (DATA / "truth.jsonl").exists(), reason="STABILITYLENS_DATA is not set"),
    pytest.mark.filterwarnings("ignore"),
]
HIDDEN = -9e3


def unwatched(function):
    """The lens would take what is computed here for attention of the model's."""

    @functools.wraps(function)
    def call(*args):
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return function(*args)

    return call


@unwatched
def call_of(q, k, scale, mask, causal, cap=None, added=None, sinks=None):
    """Per head: mean entropy, largest visible logit and mean norms, in float64, of rows that see a key.

    A sink's logit stands beside those of the keys in the softmax.
    """
    q, k = q.detach().double(), k.detach().double()
    every = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    raw = scale * q @ every.transpose(-1, -2)
    bias = torch.zeros_like(raw)
    if mask is not None:
        mask = mask.detach()[..., : k.shape[2]]
        bias = bias + (torch.zeros(mask.shape).double().masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else mask.double())
    if added is not None:
        bias = bias + added.detach().double()
    if causal:
        bias = bias.masked_fill(torch.ones(raw.shape[-2:]).triu(1).bool(), -torch.inf)
    visible = bias > HIDDEN
    used = visible.any(-1)
    s = (cap * torch.tanh(raw / cap) if cap else raw) + bias
    s = s.masked_fill(~visible, -torch.inf)
    p = (s if sinks is None else torch.cat((s, sinks.detach().double().reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)), -1)).softmax(-1)
    count = used.sum((0, 2))
    entropy = torch.where(used, torch.special.entr(p).sum(-1), 0).sum((0, 2)) / count
    norm = torch.where(used, q.norm(dim=-1), 0).sum((0, 2)) / count
    return {"attn_entropy": entropy, "max_attn_logit": raw.masked_fill(~visible, -torch.inf).amax((0, 2, 3)), "query_norm": norm}


def record_calls(monkeypatch, model) -> list[dict]:
    """Everything that enters torch's function, or an eager function of the model's files, from here on."""
    calls: list[dict] = []
    real = F.scaled_dot_product_attention

    def watched(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        calls.append(call_of(q, k, q.shape[-1] ** -0.5 if scale is None else scale, attn_mask, is_causal))
        return real(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    def watched_eager(function):
        def call(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            more = kwargs.get("softcap"), kwargs.get("position_bias"), getattr(module, "sinks", None)
            calls.append(call_of(query, key, scale, attention_mask, False, *more))
            return function(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)

        return call

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    for home in {type(m).__module__ for m in model.modules()}:
        function = getattr(sys.modules[home], "eager_attention_forward", None)
        if function is not None:
            monkeypatch.setattr(sys.modules[home], "eager_attention_forward", watched_eager(function))
    return calls


#: whose attention, or a part of it, neither is torch's function nor the eager function of their files; what the lens makes of them
#: is compared with the weights that they return, and their number with the one that is known, in test_architectures.py
WRITTEN_OUT = dict.fromkeys(
    ("swinv2", "wavlm", "deberta", "fsmt", "openai-gpt", "flaubert", "rembert", "mpnet", "xlm", "megatron-bert", "falcon-new", "hiera",
     "xglm", "vitdet", "bloom", "mpt-qkln"),
    "its eager attention is written out in its own modules",
) | {"siglip": "its pooling is torch's multi-head attention with weights"}  # fmt: skip
#: scaled before the eager function, whose scale is 1; the lens counts it as the scale, so that every spelling is alike
SCALED_BEFORE = {("opt", "eager"), ("opt-postln", "eager")}


def cases() -> list:
    """One of six by default; all others are for ``make bench``."""
    names = [r["name"] for r in rows() if r["n_softmax_attn"] and r["name"] not in UNSEEN]
    return [
        pytest.param(name, attention, id=f"{name}-{attention}", marks=[] if i % 6 == 0 else [pytest.mark.grid])
        for i, name in enumerate(names)
        for attention in ("eager", "sdpa")
    ]


@pytest.mark.parametrize(("name", "attention"), cases())
def test_statistics_are_those_of_what_entered_each_call(name, attention, monkeypatch, tmp_path):
    try:
        model, kwargs = build(name, attention)
    except ValueError as error:
        pytest.skip(f"it does not do {attention}: {error}"[:80])
    with monkeypatch.context() as patch, sl.attach(model, torch.optim.SGD(model.parameters(), 0.0), tmp_path) as lens:
        calls = record_calls(patch, model)
        loss = first_tensor(model(**kwargs)).float().square().mean()
        loss.backward()
        lens.step(loss)
        assert not lens.guard.failures
    run = sl.load(tmp_path)
    if len(calls) != run["max_attn_logit"].values.shape[1]:
        assert name in WRITTEN_OUT, f"{len(calls)} calls entered and {run['max_attn_logit'].values.shape[1]} were seen"
        pytest.skip(WRITTEN_OUT[name])
    metrics = {"max_attn_logit", "query_norm", "attn_entropy"}
    metrics -= {"query_norm"} if (name, attention) in SCALED_BEFORE else set()
    for metric in metrics:
        seen = run[metric].values[0]
        for i, want in enumerate(calls):
            assert seen[i, : len(want[metric])] == pytest.approx(want[metric].numpy(), abs=1e-4, rel=1e-4), (metric, i)
