"""Models as people write and call them, in a loop that must stay what it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loops import observed, simple
from torch import Tensor, nn
from training import Block, Decoder, tokens

from stabilitylens.hooks.taps import ForwardTaps


class InPlace(nn.Module):
    """Changes what its modules returned right after they returned it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.blocks = nn.ModuleList(Block(32, 4, 0.0) for _ in range(2))
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        h = h + 0
        for block in self.blocks:
            y = block(h)
            y += h
            h = self.act(y)
        return F.cross_entropy(self.head(h).flatten(0, 1), x.flatten())


def test_what_is_changed_in_place_after_a_block_is_read_before_the_change(tmp_path):
    run = observed(simple(InPlace, steps=1), tmp_path)
    torch.manual_seed(0)
    twin, x, outputs = InPlace(), tokens(), []
    h = twin.embedding(x)
    for block in twin.blocks:
        y = block(h)
        y.retain_grad()
        outputs.append(y)
        h = torch.relu(y + h)
    F.cross_entropy(twin.head(h).flatten(0, 1), x.flatten()).backward()
    assert run["resid_rms"].values[0] == pytest.approx([y.square().mean().sqrt().item() for y in outputs], rel=1e-5)
    assert run["resid_grad_norm"].values[0] == pytest.approx([y.grad.norm().item() for y in outputs], rel=1e-5)


@dataclass
class Out:
    note: str
    hidden: Tensor


WRAPS = {
    "tuple": (lambda y: (y, None), lambda out: out[0]),
    "list": (lambda y: [None, y], lambda out: out[1]),
    "dict": (lambda y: {"x": y}, lambda out: out["x"]),
    "dataclass": (lambda y: Out("a", y), lambda out: out.hidden),
    "nested": (lambda y: ({"x": [y]},), lambda out: out[0]["x"][0]),
}


@pytest.mark.parametrize("how", WRAPS)
def test_blocks_that_return_containers(how, tmp_path):
    class Wrapped(Block):
        def forward(self, x):
            return WRAPS[how][0](super().forward(x))

    class Model(Decoder):
        def __init__(self):
            super().__init__(dropout=0.0)
            self.blocks = nn.ModuleList(Wrapped(32, 4, 0.0) for _ in range(3))

        def run(self, block, x):
            return WRAPS[how][1](block(x))

    run = observed(simple(Model), tmp_path)
    assert run["resid_rms"].values.shape == run["resid_grad_norm"].values.shape == (3, 3)
    assert np.isfinite(run["resid_grad_norm"].values).all()


def test_a_first_module_whose_input_needs_no_gradient(tmp_path, recwarn):
    run = observed(simple(Decoder), tmp_path)
    group = run["grad_norm/group"]
    assert group.values[:, group.labels["group"].index("embedding")].min() > 0
    assert not [w for w in recwarn if "grad_input" in str(w.message) or "hook" in str(w.message)]


def test_blocks_called_by_their_forward_are_named(tmp_path):
    class Direct(Decoder):
        def run(self, block, x):
            return block.forward(x)

    names = ("blocks.0", "blocks.1", "blocks.2")
    run = observed(simple(Direct), tmp_path)
    assert run.header.labels["layer"] == names and run.header.coverage.layers == (3, 3)
    assert run.header.labels["attention"] == tuple(f"{name}.attn" for name in names)
    called = observed(simple(Decoder), tmp_path / "called")
    for name in ("resid_rms", "resid_grad_norm", "branch_ratio", "max_attn_logit"):
        assert run[name].values == pytest.approx(called[name].values, rel=1e-6), name


def test_blocks_and_attention_called_by_their_forward_are_named(tmp_path):
    class Parts(Block):
        def forward(self, x):
            x = x + self.attn.forward(self.norm1(x))
            return x + self.down(self.up(self.norm2(x)))

    class Direct(Decoder):
        def __init__(self):
            super().__init__(dropout=0.0)
            self.blocks = nn.ModuleList(Parts(32, 4, 0.0) for _ in range(3))

        def run(self, block, x):
            return block.forward(x)

    run = observed(simple(Direct), tmp_path)
    assert run.header.labels["attention"] == ("blocks.0", "blocks.1", "blocks.2")
    assert np.isfinite(run["max_attn_logit"].values).all()


def test_one_block_of_three_called_by_its_forward(tmp_path):
    class Direct(Decoder):
        def run(self, block, x):
            return block.forward(x) if block is self.blocks[1] else block(x)

    run, called = observed(simple(Direct), tmp_path), observed(simple(Decoder), tmp_path / "called")
    assert run["resid_rms"].values == pytest.approx(called["resid_rms"].values, rel=1e-6)


def test_blocks_of_which_nothing_is_called_are_each_named(tmp_path):
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.norm = nn.Linear(32, 32), nn.Linear(32, 32), nn.LayerNorm(32)

        def forward(self, x):
            y = nn.functional.layer_norm(x, (32,), self.norm.weight, self.norm.bias)
            return x + nn.functional.linear(nn.functional.linear(y, self.up.weight), self.down.weight)

    class Direct(Decoder):
        def __init__(self):
            super().__init__(dropout=0.0)
            self.blocks = nn.ModuleList(Bare() for _ in range(3))

        def run(self, block, x):
            return block.forward(x)

    run = observed(simple(Direct), tmp_path)
    missing = dict(run.header.coverage.not_observed)
    assert all("__call__" in missing[name] for name in ("resid_rms", "blocks.0", "blocks.1", "blocks.2"))


def test_a_model_called_by_its_forward(tmp_path):
    run = observed(simple(Decoder, loss=lambda model, x: model.forward(x)), tmp_path)
    assert "call the model itself" in dict(run.header.coverage.not_observed)["resid_rms"]
    assert run["grad_norm"].values.min() > 0


def test_a_model_without_attention(tmp_path):
    class Mixer(Decoder):
        def __init__(self):
            super().__init__(dropout=0.0)
            for block in self.blocks:
                block.attn = nn.Sequential(nn.Linear(32, 32), nn.Tanh())

    run = observed(simple(Mixer), tmp_path)
    assert "no attention call" in dict(run.header.coverage.not_observed)["max_attn_logit"]
    assert run["resid_rms"].values.shape == (3, 3)


def test_a_model_that_is_no_transformer_at_all(tmp_path):
    def make():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 1))

    run = observed(simple(make, loss=lambda model, x: model(x.float()).square().mean()), tmp_path)
    assert run["grad_norm"].values.min() > 0


class Whole(Decoder):
    """All blocks stand in one part, which is recomputed as a whole in the backward."""

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(32, 4, 0.0) for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    def __init__(self, recompute=""):
        super().__init__(depth=0)
        del self.blocks
        self.body, self.recompute = self.Body(), recompute

    def forward(self, x):
        self.blocks = [self.body]
        return super().forward(x)


@pytest.mark.parametrize("recompute", ["full", "reentrant"])
def test_a_part_with_all_blocks_that_is_recomputed_in_the_backward_is_read_once(recompute, tmp_path, monkeypatch):
    begun = []
    enter = ForwardTaps.__enter__
    monkeypatch.setattr(ForwardTaps, "__enter__", lambda self: (begun.append(1), enter(self)) and None)
    plain = observed(simple(Whole), tmp_path / "plain")
    forwards = len(begun)
    again = observed(simple(lambda: Whole(recompute)), tmp_path / "again")
    assert len(begun) == 2 * forwards, "the recomputation is no forward"
    for name in ("resid_rms", "max_attn_logit"):
        assert again[name].values == pytest.approx(plain[name].values, rel=1e-6), name
