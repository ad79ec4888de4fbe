"""Every metric that is sampled by default has values or a reason, and the reason is true."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import VOCABULARY, Decoder, tokens, update

import stabilitylens as sl
from stabilitylens.metrics import METRICS
from stabilitylens.run import Run

SAMPLED = [m.name for m in METRICS if m.needs and not m.opt_in]
D = 32


class Plain(nn.Module):
    """No block, no attention, no output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(VOCABULARY, D), nn.Parameter(torch.randn(D, VOCABULARY))

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(x) @ self.out


def without_attention() -> nn.Module:
    model = Decoder(dropout=0.0)
    for block in model.blocks:
        block.attn = nn.Sequential(nn.Linear(D, D), nn.Tanh())
    return model


class WrittenOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(D, VOCABULARY))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def without_a_head() -> nn.Module:
    model = Decoder(dropout=0.0)
    model.head = WrittenOut()
    return model


class ByForward(Decoder):
    def run(self, block, x):
        return block.forward(x)


def frozen(model: nn.Module) -> nn.Module:
    model.requires_grad_(False)
    model.embedding.weight.requires_grad_(True)
    return model


CRIPPLED = {
    "whole": lambda: Decoder(dropout=0.0), "no attention": without_attention, "no block": Plain, "no head": without_a_head,
    "blocks by their forward": lambda: ByForward(dropout=0.0), "frozen": lambda: frozen(Decoder(dropout=0.0)),
    "compiled": lambda: torch.compile(Decoder(dropout=0.0), backend="eager"),
}  # fmt: skip


def loss(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return F.cross_entropy(out.flatten(0, 1), x.flatten()) if out.dim() else out


def recorded(model: nn.Module, folder, how: str = "") -> Run:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    with sl.attach(model, [] if how == "no optimizer" else optimizer, folder, every=1) as lens:
        for _ in range(2):
            value = model.forward(tokens()).square().mean() if how == "the model by its forward" else loss(model, tokens())
            if how == "no step":
                value.backward()
                lens.step(value)
            elif how == "no gradient":
                optimizer.step()
                lens.step(value)
            else:
                update(value, optimizer, lens)
    return sl.load(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", [*CRIPPLED, "no optimizer", "no step", "no gradient", "the model by its forward"])
def test_every_metric_has_values_or_a_reason(how, tmp_path):
    torch._dynamo.reset()
    run = recorded(CRIPPLED.get(how, CRIPPLED["whole"])(), tmp_path, how)
    named = dict(run.header.coverage.not_observed)
    for name in SAMPLED:
        if any(series.observed() for key, series in run.series.items() if key.partition("/")[0] == name):
            assert name not in named, f"{name} has values and is said to have none: {named.get(name)}"
        else:
            assert named.get(name), f"{name} has neither values nor a reason"
            assert named[name] in str(run.header.coverage) and (name in run or named[name] in run.why_missing(name))


def test_a_reason_that_several_metrics_share_is_printed_once(tmp_path):
    coverage = recorded(Plain(), tmp_path).header.coverage
    text = str(coverage)
    for reason in {why for _, why in coverage.not_observed}:
        assert text.count(f"({reason})") == 1


# reasons that are true


class Block(nn.Module):
    def __init__(self, weights) -> None:
        super().__init__()
        self.norm, self.qkv, self.out, self.weights = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D), weights

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out((self.weights(q, k) @ v).transpose(1, 2).flatten(2))


def over_rows(q: Tensor, k: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(-1)
    return (k @ q.transpose(-2, -1) / 3).masked_fill(hidden, -1e9).softmax(-2).transpose(-2, -1)


def by_hand(q: Tensor, k: Tensor) -> Tensor:
    a = q @ k.transpose(-2, -1) / 3
    e = (a - a.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def without_softmax(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(D)).relu()


@pytest.mark.parametrize(
    ("weights", "reason", "met"),
    [
        (over_rows, "its softmax is over another axis of a product", 2), (by_hand, "it takes exponentials of a product by hand", 2),
        (without_softmax, "no attention call was recognised: read are", 0),
    ],
)  # fmt: skip
def test_attention_in_a_form_that_is_not_read_is_said_to_be_that(weights, reason, met, tmp_path):
    model = Decoder(dropout=0.0)
    model.blocks = nn.ModuleList(Block(weights) for _ in range(2))
    run = recorded(model, tmp_path)
    for name in ("max_attn_logit", "attn_entropy", "key_norm", "masked_rows", "query_proj_norm"):
        assert reason in run.why_missing(name)
    assert run.header.coverage.attention == (0, met)


def test_a_norm_in_a_form_that_is_not_read_is_not_said_to_be_none(tmp_path):
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(D))

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.exp(-0.5 * x.square().mean(-1, keepdim=True).log()) * torch.diag_embed(self.w).sum(0)

    model = Decoder(dropout=0.0)
    model.norm = nn.Identity()
    for block in model.blocks:
        block.norm1, block.norm2 = Own(), Own()
    run = recorded(model, tmp_path)
    assert "norm_gain" not in run and "recognised" in run.why_missing("norm_gain") and "or hides it" in run.why_missing("norm_gain")


def test_values_that_are_not_recognised_are_said(tmp_path):
    class Summed(Block):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
            weights = (q @ k.transpose(-2, -1)).softmax(-1)
            y = (weights[..., None] * v[:, :, None]).sum(-2)
            return x + self.out(y.transpose(1, 2).flatten(2))

    model = Decoder(dropout=0.0)
    model.blocks = nn.ModuleList(Summed(None) for _ in range(2))
    run = recorded(model, tmp_path)
    assert run["max_attn_logit"].observed() and not run["value_norm"].observed()
    assert "multiply" in dict(run.header.coverage.not_observed)["value_norm"]
