"""Layers that no module's call holds together: the parent adds the branches to the stream, or calls a forward itself."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loops import norm, observed, simple
from loose_models import (
    Added,
    Columns,
    D,
    Direct,
    Named,
    Normed,
    NormedOutside,
    Pairs,
    PairsInPlace,
    PostPairs,
    Turns,
    attention,
    feed,
)
from torch import nn
from training import VOCABULARY, Block, Decoder, tokens
from vision_stand_in import stand_in

import stabilitylens as sl
from stabilitylens.hooks.anatomy import find_blocks
from stabilitylens.hooks.layers import find_layers
from stabilitylens.hooks.loose import OUTSIDE

NUMBERED = tuple(f"layers.{i}" for i in range(3))
STYLES = {
    Pairs: NUMBERED, PairsInPlace: NUMBERED, PostPairs: NUMBERED, Named: ("layers.l0", "layers.l1", "layers.l2"),
    Columns: tuple(f"attends.{i} + feeds.{i} + norms1.{i} + norms2.{i}" for i in range(3)),
    Turns: tuple(f"layers.{2 * i} + layers.{2 * i + 1}" for i in range(3)),
    Added: NUMBERED, NormedOutside: NUMBERED, Direct: NUMBERED,
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_the_stream_is_what_the_parent_s_sums_make_in_double_precision(style, tmp_path):
    torch.manual_seed(0)
    model, x = style().double(), tokens()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        loss = model(x)
        loss.backward()
        lens.grads_ready()
        streams, grads = model.streams, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        lens.step(loss)
    assert not lens.guard.failures
    run = sl.load(tmp_path)
    assert run.header.labels["layer"] == STYLES[style] and run.header.coverage.layers == (3, 3)
    assert run["resid_rms"].values[0] == pytest.approx([s.square().mean().sqrt().item() for s in streams], rel=1e-6)
    assert run["resid_absmax"].values[0] == pytest.approx([s.abs().max().item() for s in streams], rel=1e-6)
    assert run["resid_grad_norm"].values[0] == pytest.approx([s.grad.norm().item() for s in streams], rel=1e-6)
    inside = [[n for n in grads for part in name.split(" + ") if n.startswith(f"{part}.")] for name in STYLES[style]]
    assert run["grad_norm/layer"].values[0] == pytest.approx([norm(grads[n] for n in some) for some in inside], rel=1e-6)
    assert len(run.header.labels["attention"]) == 3 and "" not in run.header.labels["attention"]
    assert not {"resid_rms", "branch_ratio"} & dict(run.header.coverage.not_observed).keys()


@pytest.mark.parametrize("style", STYLES)
def test_the_training_of_such_a_model_is_equal_to_the_bit(style, tmp_path):
    run = observed(simple(style, loss=lambda model, x: model(x)), tmp_path)
    assert run["resid_rms"].values.shape == (3, 3)


def test_what_is_added_to_the_stream_of_a_pair_over_the_stream(tmp_path):
    torch.manual_seed(0)
    model, x = Pairs(1).double(), tokens()
    stream = model.embedding(x)
    attended = model.layers[0][0](stream)
    middle = stream + attended
    fed = model.layers[0][1](middle)
    want = [(a.square().mean() / b.square().mean()).sqrt().item() for a, b in ((attended, stream), (fed, middle))]
    with sl.attach(model, torch.optim.SGD(model.parameters(), 0.1), tmp_path, every=1) as lens:
        lens.step(model(x))
    run = sl.load(tmp_path)
    assert run["branch_ratio"].labels["branch"] == ("attention", "feed_forward")
    assert run["branch_ratio"].values[0, 0] == pytest.approx(want, rel=1e-6)


def test_one_pair_applied_three_times_is_one_layer_called_three_times(tmp_path):
    class Recurrent(Pairs):
        def build(self, depth):
            pair = nn.ModuleList([Normed(attention()), Normed(feed())])
            self.layers = nn.ModuleList([pair] * depth)

    torch.manual_seed(0)
    run = observed(simple(Recurrent, loss=lambda model, x: model(x)), tmp_path)
    assert run.header.labels["layer"] == ("layers.0", "layers.0#2", "layers.0#3")
    assert np.isfinite(run["resid_rms"].values).all()


def test_a_layer_whose_sum_is_not_seen_is_no_stream(tmp_path):
    class Hidden(Pairs):
        def run(self, x):
            for attend, feed_forward in self.layers:
                x = torch.stack([x, attend(x)]).sum(0)
                x = torch.stack([x, feed_forward(x)]).sum(0)
            return x

    run = observed(simple(Hidden, loss=lambda model, x: model(x)), tmp_path)
    missing = dict(run.header.coverage.not_observed)
    assert "resid_rms" not in run and missing["resid_rms"] == OUTSIDE
    assert {name for name, why in missing.items() if why == OUTSIDE} >= set(NUMBERED)
    assert run.header.coverage.layers == (0, 3) and run["grad_norm/layer"].values.shape == (3, 3)


def test_x_transformers_streams_are_those_its_residuals_return(tmp_path):
    x_transformers = pytest.importorskip("x_transformers")
    decoder = x_transformers.Decoder(dim=D, depth=2, heads=4, attn_dim_head=8, rotary_pos_emb=True)
    torch.manual_seed(0)
    model = x_transformers.TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=32, attn_layers=decoder).double()
    streams, x = [], tokens()
    for i in (1, 3):
        decoder.layers[i][2].register_forward_hook(lambda _m, _a, out: (out.retain_grad(), streams.append(out)) and None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        streams.clear()
        loss = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        lens.step(loss)
    run = sl.load(tmp_path)
    assert run.header.labels["layer"] == tuple(f"attn_layers.layers.{i} + attn_layers.layers.{i + 1}" for i in (0, 2))
    assert run["resid_rms"].values[0] == pytest.approx([s.square().mean().sqrt().item() for s in streams], rel=1e-6)
    assert run["resid_grad_norm"].values[0] == pytest.approx([s.grad.norm().item() for s in streams], rel=1e-6)


def test_vit_pytorch_streams_are_what_the_next_layer_receives(tmp_path):
    with stand_in():
        vit = pytest.importorskip("vit_pytorch")
        model = vit.ViT(image_size=32, patch_size=8, num_classes=10, dim=D, depth=3, heads=4, mlp_dim=64).double()
    received, layers = [], model.transformer.layers
    for module in (layers[1][0], layers[2][0], model.transformer.norm):
        module.register_forward_pre_hook(lambda _m, args: received.append(args[0].detach()))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with sl.attach(model, optimizer, tmp_path, every=1) as lens:
        received.clear()
        loss = model(torch.randn(2, 3, 32, 32).double()).square().mean()
        loss.backward()
        optimizer.step()
        lens.step(loss)
    run = sl.load(tmp_path)
    assert run.header.labels["layer"] == tuple(f"transformer.layers.{i}" for i in range(3))
    assert run["resid_rms"].values[0] == pytest.approx([r.square().mean().sqrt().item() for r in received], rel=1e-6)


def test_a_model_that_is_one_block_itself_is_no_layer_of_itself():
    class Lone(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.attend, self.norm, self.up, self.down = nn.Embedding(9, D), attention(), nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x):
            return self.down(self.up(self.norm(self.attend(self.embedding(x)))))

    assert find_blocks(Lone()) and "" not in find_layers(Lone())


def test_experts_and_stages_are_no_rows_of_branches():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.experts = nn.Linear(D, 2), nn.ModuleList(nn.ModuleList([nn.Linear(D, D), nn.Linear(D, D)]) for _ in range(2))

        def forward(self, x):
            return sum(b(F.relu(a(x))) for a, b in self.experts)

    pairs = nn.Module()
    pairs.layers = nn.ModuleList(nn.ModuleList([Normed(attention()), Mixed()]) for _ in range(2))
    assert list(find_layers(pairs)) == ["layers.0", "layers.1"]
    stages = nn.Module()
    stages.stages = nn.ModuleList(nn.ModuleList(Block(D, 4) for _ in range(2)) for _ in range(2))
    assert list(find_layers(stages)) == [f"stages.{i}.{j}" for i in range(2) for j in range(2)]


def test_where_every_block_is_one_module_layers_are_blocks():
    for model in (Decoder(), Direct(), nn.Transformer(D, 4, 2, 2, 64)):
        assert list(find_layers(model)) == [name for name, _ in find_blocks(model)]
