"""Logits before a soft-cap, and torch's own multi-head attention in all of its modes."""

from __future__ import annotations

import math

import pytest
import torch
from stacks import HEADS, LAYOUTS, LENGTH, D, Fused, Stack, observed, rotated
from torch import Tensor, nn


class Capped(Fused):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        scores = q @ k.transpose(-1, -2) * 3.0
        scores = torch.tanh(scores / 2.0) * 2.0
        scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_the_largest_logit_before_a_soft_cap(tmp_path):
    model, x = Stack(lambda: Capped(LAYOUTS["by head"], rotated, False)), torch.randn(2, LENGTH, D)
    block = model.blocks[0]
    q, k, _ = block.branch.projected(block.norm(x))
    raw = (3 * q @ k.transpose(-1, -2)).detach().masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf)
    run = observed(model, x, tmp_path)
    assert run["max_attn_logit_precap"].values[0, 0] == pytest.approx(raw.amax((0, 2, 3)).numpy(), rel=1e-4)
    assert run["max_attn_logit"].values == pytest.approx(run["max_attn_logit_precap"].values)
    entropy = torch.special.entr((2 * torch.tanh(raw.double() / 2)).masked_fill(raw.isneginf(), -math.inf).softmax(-1))
    assert run["attn_entropy"].values[0, 0] == pytest.approx(entropy.sum(-1).mean((0, 2)).numpy(), abs=1e-4)


def with_mha(options, call, cross=False):
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            kwargs = {"kdim": 20, "vdim": 24} if cross else {}
            self.mha = nn.MultiheadAttention(D, HEADS, **kwargs, **options)

        def forward(self, x):
            if not options.get("batch_first"):
                x = x.transpose(0, 1)
            k, v = (x[..., :20] * 2, x[..., :24]) if cross else (x, x)
            y = self.mha(x, k, v, **call)[0]
            return y if options.get("batch_first") else y.transpose(0, 1)

    return Attending


CAUSAL, PADDING = torch.ones(LENGTH, LENGTH).triu(1).bool(), torch.zeros(2, LENGTH).bool()
PADDING[1, 9:] = True
MODES = {
    "plain": ({}, {}), "batch first": ({"batch_first": True}, {}),
    "causal": ({}, {"attn_mask": CAUSAL}), "causal hint": ({}, {"attn_mask": CAUSAL, "is_causal": True}),
    "float mask": ({}, {"attn_mask": torch.zeros(LENGTH, LENGTH).masked_fill(CAUSAL, -math.inf)}),
    "padding": ({}, {"key_padding_mask": PADDING}),
    "padding and causal": ({}, {"key_padding_mask": PADDING, "attn_mask": CAUSAL}),
    "bias of k and v": ({"add_bias_kv": True}, {}), "a zero key": ({"add_zero_attn": True}, {}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_multi_head_attention_with_and_without_weights_is_the_same(mode, cross, tmp_path):
    options, call = MODES[mode]
    runs, x = [], torch.randn(2, LENGTH, D)
    for need in (True, False):
        more = {} if need and call.get("is_causal") else {"need_weights": need}
        model = Stack(with_mha(options, call | more, cross))
        runs.append(observed(model, x, tmp_path / str(need)))
    weights = []
    for block in model.blocks[:1]:
        y = block.norm(x)
        y = y if options.get("batch_first") else y.transpose(0, 1)
        k, v = (y[..., :20] * 2, y[..., :24]) if cross else (y, y)
        seen = {n: t for n, t in call.items() if n != "is_causal"}
        weights.append(block.branch.mha(y, k, v, average_attn_weights=False, **seen)[1].detach().double())
    queries = ~PADDING if "key_padding_mask" in call else torch.ones(2, LENGTH).bool()
    entropy = torch.special.entr(weights[0]).sum(-1).transpose(1, 2)[queries].mean(0)
    for run in runs:
        assert run["attn_entropy"].values[0, 0] == pytest.approx(entropy.numpy(), abs=1e-4)
        assert run["query_proj_norm"].values[0] == pytest.approx(run["query_norm"].values[0], rel=1e-4)
    for name in ("max_attn_logit", "query_norm", "key_norm", "value_norm"):
        assert runs[0][name].values == pytest.approx(runs[1][name].values, abs=1e-5), name
