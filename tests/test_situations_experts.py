"""Mixtures of experts in every layout: load, gradients and routing, and what is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from stacks import LAYOUTS, LENGTH, D, Fused, Stack, observed, rotated
from torch import Tensor, nn

import stabilitylens as sl


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, 16), nn.Linear(16, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class Mixture(nn.Module):
    """Experts in a list, in matrices of three dimensions, or in one matrix; gated by softmax or sigmoid."""

    def __init__(self, layout: str, gate: str = "softmax", experts: int = 5, k: int = 2) -> None:
        super().__init__()
        self.router, self.layout, self.gate, self.k, self.n = nn.Linear(D, experts, bias=False), layout, gate, k, experts
        if layout == "list":
            self.experts = nn.ModuleList(Expert() for _ in range(experts))
        elif layout == "fused":
            self.up, self.down = nn.Parameter(torch.randn(experts, D, 16) / 8), nn.Parameter(torch.randn(experts, 16, D) / 8)
        else:
            self.up, self.down = nn.Parameter(torch.randn(experts * 16, D) / 8), nn.Parameter(torch.randn(experts * 16, D) / 8)

    def expert(self, i: int, x: Tensor) -> Tensor:
        if self.layout == "list":
            return self.experts[i](x)
        if self.layout == "fused":
            return F.silu(x @ self.up[i]) @ self.down[i]
        return F.silu(x @ self.up.view(self.n, 16, D)[i].T) @ self.down.view(self.n, 16, D)[i]

    def scores(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        logits = torch.cat((logits[:, :-1], logits[:, -1:] - 100), -1)  # nobody ever chooses the last one
        return logits.softmax(-1) if self.gate == "softmax" else logits.sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, D)
        weights, index = torch.topk(self.scores(flat), self.k, -1)
        out = torch.zeros_like(flat)
        for i in range(self.n):
            token, slot = torch.where(index == i)
            if len(token):
                out = out.index_add(0, token, self.expert(i, flat[token]) * weights[token, slot, None])
        return out.view_as(x)


class Both(nn.Module):
    """Attention, and experts after it."""

    def __init__(self, mixture: nn.Module) -> None:
        super().__init__()
        self.attention, self.mixture = Fused(LAYOUTS["by head"], rotated, False), mixture

    def forward(self, x: Tensor) -> Tensor:
        return self.mixture(self.attention(x))


def routed(model: nn.Module, x: Tensor) -> Tensor:
    """What the router of the first block sees."""
    block = model.blocks[0]
    return block.branch.attention(block.norm(x)).reshape(-1, D)


@pytest.mark.parametrize("layout", ["list", "fused", "packed"])
def test_load_and_gradient_of_each_expert_and_none_where_no_token_came(layout, tmp_path):
    model, x = Stack(lambda: Both(Mixture(layout))), torch.randn(2, LENGTH, D)
    mixture = model.blocks[0].branch.mixture
    index = mixture.scores(routed(model, x)).topk(2, -1)[1]
    run = observed(model, x, tmp_path)
    load = run["expert_load"].values[0, 0]
    assert load == pytest.approx(torch.bincount(index.flatten(), minlength=5).numpy() / (2 * LENGTH)) and load[-1] == 0
    assert load.sum() == pytest.approx(2)
    grads = run["expert_grad_norm"].values[0, 0]
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    for i in range(4):
        mine = mixture.experts[i].parameters() if layout == "list" else (mixture.up, mixture.down)
        pieces = [p.grad if layout == "list" else p.grad.view(5, -1)[i] for p in mine]
        assert grads[i] == pytest.approx(torch.cat([g.flatten() for g in pieces]).double().norm().item(), rel=1e-4)
    assert np.isnan(grads[-1]), "no token, no gradient: not observed, and not zero"


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_the_entropy_of_a_router_is_that_of_its_distribution(gate, tmp_path):
    class Plain(Mixture):
        def scores(self, x):
            logits = self.router(x)
            return logits.softmax(-1) if self.gate == "softmax" else logits.sigmoid() + 0.01 * torch.arange(self.n)

    model, x = Stack(lambda: Both(Plain("fused", gate))), torch.randn(2, LENGTH, D)
    logits = model.blocks[0].branch.mixture.router(routed(model, x)).detach().double()
    p = logits.softmax(-1) if gate == "softmax" else F.normalize(logits.sigmoid(), 1, dim=-1)
    want = torch.special.entr(p).sum(-1).mean().item()
    assert observed(model, x, tmp_path)["router_entropy"].values[0, 0] == pytest.approx(want, rel=1e-4)


def test_micro_batches_of_a_mixture_add_up(tmp_path):
    model = Stack(lambda: Both(Mixture("list")))
    xs = torch.randn(2, 2, LENGTH, D)
    with sl.attach(model.train(), torch.optim.SGD(model.parameters(), 0.0), tmp_path, every=1) as lens:
        for x in xs:
            loss = model(x).square().mean()
            loss.backward()
            lens.micro_step(loss)
        lens.grads_ready()
        lens.step()
    index = model.blocks[0].branch.mixture.scores(routed(model, xs.flatten(0, 1))).topk(2, -1)[1]
    load = sl.load(tmp_path)["expert_load"].values[0, 0]
    assert load == pytest.approx(torch.bincount(index.flatten(), minlength=5).numpy() / (4 * LENGTH))


def test_choosing_the_largest_is_no_routing_where_there_are_no_experts(tmp_path):
    class Sparse(Fused):
        def forward(self, x):
            q, k, v = self.projected(x)
            scores = q @ k.transpose(-1, -2)
            keep = scores.topk(3, -1)[1]
            mask = torch.full_like(scores, -math.inf).scatter(-1, keep, 0.0)
            return self.out(((scores + mask).softmax(-1) @ v).transpose(1, 2).flatten(2))

    run = observed(Stack(lambda: Sparse(LAYOUTS["by head"], rotated, False)), torch.randn(2, LENGTH, D), tmp_path)
    assert "expert_load" not in run and "attn_entropy" in run


def test_idle_experts_are_no_vanishing_gradients(tmp_path):
    run = observed(Stack(lambda: Both(Mixture("list"))), torch.randn(2, LENGTH, D), tmp_path, steps=6)
    fired = {f.name for f in sl.postmortem(tmp_path).findings if f.verdict == "fired"}
    assert not fired & {"gradient-vanishing", "gradient_vanishing", "epsilon-floor", "epsilon_floor"}
    assert (run["expert_load"].values[:, :, -1] == 0).all()
