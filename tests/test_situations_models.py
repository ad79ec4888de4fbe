"""Models as people write them: what a lens meets in them, each kind under a name of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stabilitylens as sl

HEADS, WIDTH, LENGTH, D = 4, 8, 12, 32


def observed(model, x, logdir, steps=1, **attach):
    """The run after a few steps, whose observed training is equal to the bit to the bare one."""
    results = []
    state = {n: t.clone() for n, t in model.state_dict().items()}
    for folder in (None, logdir):
        model.load_state_dict(state)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        lens = sl.attach(model.train(), optimizer, folder, every=1, **attach) if folder else None
        torch.manual_seed(1)
        for _ in range(steps):
            loss = model(x).square().mean()
            loss.backward()
            if lens:
                lens.grads_ready()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if lens:
                lens.step(loss)
        if lens:
            assert not lens.guard.failures
            lens.close()
        results.append([loss.detach(), *(p.detach().clone() for p in model.parameters())])
    assert all(map(torch.equal, *results))
    model.load_state_dict(state)
    return sl.load(logdir)


class Stack(nn.Module):
    """Residual blocks around a function of the block and its normalised input."""

    class Block(nn.Module):
        def __init__(self, branch: nn.Module) -> None:
            super().__init__()
            self.norm, self.branch = nn.LayerNorm(D), branch

        def forward(self, x: Tensor) -> Tensor:
            return x + self.branch(self.norm(x))

    def __init__(self, make) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(self.Block(make()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


# which q and k: before and after norm and rotation, from every layout of a fused projection


def rotated(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def interleaved_rotation(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(-2)


def complex_rotation(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)
    turn = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * turn).flatten(-2)


def partial_rotation(x: Tensor) -> Tensor:
    return torch.cat((rotated(x[..., : WIDTH // 2]), x[..., WIDTH // 2 :]), -1)


def half_rotation(x: Tensor) -> Tensor:
    angle = (torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)).repeat(1, 2)
    return x * angle.cos() + torch.cat((-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]), -1) * angle.sin()


ROTATIONS = (rotated, interleaved_rotation, complex_rotation, partial_rotation, half_rotation, lambda x: x)
LAYOUTS = {
    "one after the other": lambda y: [t.unflatten(-1, (HEADS, WIDTH)) for t in y.chunk(3, -1)],
    "by head": lambda y: y.unflatten(-1, (HEADS, 3 * WIDTH)).chunk(3, -1),
    "three by head": lambda y: y.unflatten(-1, (HEADS, 3, WIDTH)).unbind(-2),
    "slices": lambda y: [y[..., i * D : (i + 1) * D].view(*y.shape[:2], HEADS, WIDTH) for i in range(3)],
    "grouped": lambda y: (
        y[..., :D].unflatten(-1, (HEADS, WIDTH)),
        *(t.unflatten(-1, (2, WIDTH)).repeat_interleave(2, 2) for t in y[..., D : D + 4 * WIDTH].chunk(2, -1)),
    ),
}


class Fused(nn.Module):
    """Self-attention on a fused projection, with QK-Norm and a rotation."""

    def __init__(self, layout, rotation, qk_norm: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.layout, self.rotation = nn.Linear(D, 3 * D), nn.Linear(D, D), layout, rotation
        self.scale_q, self.scale_k = (nn.RMSNorm(WIDTH) if qk_norm else nn.Identity() for _ in range(2))

    def projected(self, x: Tensor) -> list[Tensor]:
        return [t.transpose(1, 2) for t in self.layout(self.qkv(x))]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        q, k = self.rotation(self.scale_q(q)), self.rotation(self.scale_k(k))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("rotation", range(len(ROTATIONS)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_straight_out_of_the_projection(layout, rotation, qk_norm, tmp_path):
    model, x = Stack(lambda: Fused(LAYOUTS[layout], ROTATIONS[rotation], qk_norm)), torch.randn(2, LENGTH, D)
    block = model.blocks[0]
    q, k, _ = block.branch.projected(block.norm(x))
    run = observed(model, x, tmp_path)
    for name, made in (("query_proj_norm", q), ("key_proj_norm", k)):
        want = made.detach().double().norm(dim=-1).mean((0, 2))
        assert run[name].values[0, 0] == pytest.approx(want.numpy(), rel=1e-5), name
    if qk_norm:
        assert run["query_norm"].values[0, 0] == pytest.approx(WIDTH**0.5, rel=1e-3)


class Adapted(Fused):
    """With a low-rank adapter on the projection, as adapter libraries write it."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.a, self.b = nn.Linear(D, 2, bias=False), nn.Linear(2, 3 * D, bias=False)

    def projected(self, x: Tensor) -> list[Tensor]:
        return [t.transpose(1, 2) for t in self.layout(self.qkv(x) + self.b(self.a(x)) * 2.0)]


def test_an_adapter_is_part_of_the_projection(tmp_path):
    model, x = Stack(lambda: Adapted(LAYOUTS["one after the other"], rotated, True)), torch.randn(2, LENGTH, D)
    block = model.blocks[0]
    want = block.branch.projected(block.norm(x))[0].detach().double().norm(dim=-1).mean((0, 2))
    assert observed(model, x, tmp_path)["query_proj_norm"].values[0, 0] == pytest.approx(want.numpy(), rel=1e-5)


class Pooled(Fused):
    def projected(self, x: Tensor) -> list[Tensor]:
        q, k, v = super().projected(x)
        return [F.max_pool1d(q.flatten(0, 1).transpose(1, 2), 1).transpose(1, 2).unflatten(0, q.shape[:2]) * 1.0, k.cumsum(-1), v]


def test_what_leads_back_to_no_projection_is_said_once(tmp_path):
    run = observed(Stack(lambda: Pooled(LAYOUTS["by head"], rotated, False)), torch.randn(2, LENGTH, D), tmp_path)
    said = [(name, why) for name, why in run.header.coverage.not_observed if name == "key_proj_norm"]
    assert said == [("key_proj_norm", "the keys of blocks.0.branch and of 1 more calls cannot be followed back to one projection")]
    assert "key_norm" in run and "key_proj_norm" not in run


def test_a_projection_that_was_overwritten_is_not_reported(tmp_path):
    class Overwriting(Fused):
        def projected(self, x):
            q, k, v = super().projected(x)
            q.mul_(2.0)
            return [q, k, v]

    run = observed(Stack(lambda: Overwriting(LAYOUTS["slices"], rotated, False)), torch.randn(2, LENGTH, D), tmp_path)
    assert "query_proj_norm" not in run and "query_norm" in run


# soft-caps


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


# mixtures of experts


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


# gains and slopes


class OnePlus(nn.Module):
    """A gain that is kept as its distance from one."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-3, 1, D))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1.0 + self.w.float())


class Bounded(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.alpha, self.shift, self.function = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor(0.1)), function
        self.gain, self.bias = nn.Parameter(torch.linspace(-1, 2, D)), nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        moved = self.alpha * x + self.shift if self.function is torch.erf else self.alpha * x
        return self.gain * self.function(moved) + self.bias


def test_gains_are_what_the_normalised_values_are_multiplied_by(tmp_path):
    run = observed(Stack(lambda: nn.Sequential(OnePlus(), nn.Linear(D, D))), torch.randn(2, LENGTH, D), tmp_path)
    by_name = dict(zip(run["norm_gain"].labels["norm"], run["norm_gain"].values[0], strict=True))
    assert by_name["blocks.0.norm"] == 1
    assert by_name["blocks.0.branch.0"] == pytest.approx((1 + torch.linspace(-3, 1, D)).abs().mean().item(), rel=1e-5)


@pytest.mark.parametrize("function", [torch.tanh, torch.erf])
def test_slopes_of_bounded_stand_ins_for_norms(function, tmp_path):
    run = observed(Stack(lambda: nn.Sequential(Bounded(function), nn.Linear(D, D))), torch.randn(2, LENGTH, D), tmp_path)
    names = run["dyt_alpha"].labels["norm"]
    alpha, gain = (dict(zip(names, run[n].values[0], strict=True)) for n in ("dyt_alpha", "norm_gain"))
    assert alpha["blocks.0.branch.0"] == pytest.approx(0.7) and math.isnan(alpha["blocks.0.norm"])
    assert gain["blocks.0.branch.0"] == pytest.approx(torch.linspace(-1, 2, D).abs().mean().item(), rel=1e-5)


def test_a_scale_on_a_branch_is_no_gain(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.gamma = nn.Linear(D, D), nn.Parameter(torch.full((D,), 0.1))

        def forward(self, x):
            return self.lin(F.layer_norm(x, (D,))) * self.gamma

    run = observed(Stack(Scaled), torch.randn(2, LENGTH, D), tmp_path)
    assert set(run["norm_gain"].labels["norm"]) == {"blocks.0.norm", "blocks.1.norm"}


def test_kurtosis_is_opt_in(tmp_path):
    model, x = Stack(lambda: Fused(LAYOUTS["by head"], rotated, False)), torch.randn(2, LENGTH, D)
    assert "act_kurtosis" not in observed(model, x, tmp_path / "default")
    run = observed(model, x, tmp_path / "asked", metrics=["default", "act_kurtosis"])
    out = model.blocks[0](x).detach().double()
    assert run["act_kurtosis"].values[0, 0] == pytest.approx((out**4).mean().item() / out.square().mean().item() ** 2)


# torch's own multi-head attention


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
