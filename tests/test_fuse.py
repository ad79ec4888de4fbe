"""fuse_norms: results in every element, training to the bit, and what a lens sees, with it and without."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from training import Decoder, gpt2, llama, loss_of, one_step, tokens, train, update

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.fuse import FusedNorm
from stabilitylens.hooks.slots import Slots

NORM_METRICS = ["norm_input_rms", "norm_output_rms", "norm_output_absmax", "norm_output_grad_norm"]


def fused(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, FusedNorm)]


@pytest.mark.parametrize("make", [Decoder, gpt2, llama])
@pytest.mark.parametrize("autocast", [False, True])
def test_fifty_steps_are_equal_to_the_bit(make, autocast):
    def fuse():
        model = make()
        assert sl.fuse_norms(model)
        return model

    train(fuse, steps=50, autocast=autocast).assert_equals(train(make, steps=50, autocast=autocast))


def test_the_kernels_train_alike():
    kernel_cases = pytest.importorskip("kernel_cases")
    outcomes = []
    for way in ("reference", "triton"):
        with kernel_cases.backend(way):
            torch.manual_seed(0)
            model = Decoder(16, 2, 1, dropout=0.0)
            sl.fuse_norms(model)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            losses = []
            for _ in range(8):
                loss = loss_of(model, tokens(2, 8))
                update(loss, optimizer)
                losses.append(loss.detach())
        outcomes.append(torch.stack(losses))
    assert torch.allclose(*outcomes, rtol=1e-5)
    assert not torch.equal(*outcomes), "the kernels did not run"


@pytest.mark.parametrize("way", ["reference", "triton"])
def test_rows_of_norms_go_to_the_lens_while_it_samples(way, tmp_path, monkeypatch):
    kernel_cases = pytest.importorskip("kernel_cases")
    told = []
    original = Slots.add
    monkeypatch.setattr(Slots, "add", lambda self, tap, key, row: (told.append((tap, key, row.clone())), original(self, tap, key, row))[1])
    model = Decoder(16, 2, 2, dropout=0.0)
    names = sl.fuse_norms(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with kernel_cases.backend(way), sl.attach(model, optimizer, tmp_path, every=2, metrics=["default", *NORM_METRICS]) as lens:
        for step in range(3):
            told.clear()
            loss = loss_of(model, tokens(2, 8))
            loss.backward()
            optimizer.step()
            lens.step(loss)
            optimizer.zero_grad()
            seen = {(tap, key[0]) for tap, key, _ in told if tap.startswith("norm_") and tap != "norm_gain"}
            forward = {(tap, name) for tap in ("norm_input", "norm_output", "norm_output_grad") for name in names}
            assert seen >= forward if step in (0, 1) else not seen
            assert all(row[0] == 2 * 8 * 16 for tap, _, row in told if tap == "norm_input")
        loss_of(model, tokens(2, 8))
        assert not lens.guard.failures
    run = sl.load(tmp_path)
    for metric in NORM_METRICS:
        by_name = dict(zip(run[metric].labels["norm"], run[metric].values[0], strict=True))
        assert set(names) <= set(by_name) and all(by_name[name] > 0 for name in names), metric


@pytest.mark.parametrize("way", ["reference", "triton"])
def test_metrics_of_norms_are_those_of_the_tensors(way, tmp_path):
    kernel_cases = pytest.importorskip("kernel_cases")
    model = Decoder(16, 2, 1, dropout=0.0)
    names = sl.fuse_norms(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    seen, layer = {}, model.get_submodule(names[0])

    def keep(module, args, out):
        seen.update(x=args[0].detach(), y=out.detach())
        out.register_hook(lambda grad: seen.update(grad=grad.detach()))

    layer.register_forward_hook(keep)
    with kernel_cases.backend(way), sl.attach(model, optimizer, tmp_path, every=1, metrics=NORM_METRICS) as lens:
        loss = loss_of(model, tokens(2, 8))
        update(loss, optimizer, lens)
    run = sl.load(tmp_path)
    got = [run[m].values[0][run[m].labels["norm"].index(names[0])] for m in NORM_METRICS]
    rms = [seen[k].double().square().mean().sqrt() for k in "xy"]
    assert np.allclose(got, [*rms, seen["y"].abs().max(), seen["grad"].double().norm()], rtol=1e-5)


@pytest.mark.parametrize("way", ["reference", "triton"])
def test_nothing_is_computed_for_a_lens_whose_metrics_read_nothing_of_norms(way, tmp_path, monkeypatch):
    kernel_cases = pytest.importorskip("kernel_cases")
    monkeypatch.setattr("stabilitylens.hooks.norm_listener.NormListener.add", lambda *_: pytest.fail("nobody reads it"))
    model = Decoder(16, 2, 1, dropout=0.0)
    sl.fuse_norms(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with kernel_cases.backend(way), sl.attach(model, optimizer, tmp_path, every=1) as lens:
        update(loss_of(model, tokens(2, 8)), optimizer, lens)


class Odd(nn.Module):
    """Not norms: what merely resembles one is left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.shifted = Affine(8)
        self.two_inputs = TwoInputs(8)
        self.batch = nn.BatchNorm1d(8)
        self.noisy = NoisyNorm(8)
        self.real = nn.LayerNorm(8)
        self.named = nn.RMSNorm(8)


class Affine(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        return x * self.weight + self.bias


class TwoInputs(Affine):
    def forward(self, x, gate):
        return torch.rms_norm(x, (8,), self.weight) * gate


class NoisyNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1e-3 * torch.randn_like(x)


class ScaledRms(nn.Module):
    """A norm whose parameters have names of their own."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.gamma, self.tiny = nn.Parameter(torch.ones(d)), 3e-4

    def forward(self, x):
        h = x.float()
        return (self.gamma.float() * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.tiny))).to(x.dtype)


def test_found_by_what_they_compute():
    assert sl.fuse_norms(Odd()) == ("real", "named")
    mine = nn.Sequential(ScaledRms(8))
    assert sl.fuse_norms(mine) == ("0",)
    assert mine[0]._fused.fit.eps == 3e-4 and mine[0]._fused.fit.weight == "gamma"


@pytest.mark.parametrize(
    "layer",
    [nn.LayerNorm(8), nn.LayerNorm(8, eps=1e-12), nn.LayerNorm(8, bias=False), nn.LayerNorm(8, elementwise_affine=False), nn.RMSNorm(8), nn.RMSNorm(8, eps=1e-5)],
)
def test_layers_of_torch(layer):
    check_layer(layer, 8)


def test_layers_of_timm_and_x_transformers():
    layers = pytest.importorskip("timm.layers")
    x_transformers = pytest.importorskip("x_transformers.x_transformers")
    for layer in (layers.LayerNorm(8), layers.RmsNorm(8), x_transformers.RMSNorm(8), x_transformers.RMSNorm(8, unit_offset=True), x_transformers.LayerNorm(8)):
        check_layer(layer, 8)


def check_layer(layer, d):
    holder = nn.Sequential(layer)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.2 * torch.randn_like(p))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        holder.to(dtype)
        x = torch.randn(3, 5, d).to(dtype)
        plain = holder(x)
        names = [n for n, _ in holder.named_parameters()]
        assert sl.fuse_norms(holder) == ("0",)
        assert torch.equal(holder(x), plain) and [n for n, _ in holder.named_parameters()] == names
        kernel_cases = pytest.importorskip("kernel_cases")
        with kernel_cases.backend("triton"):
            assert torch.allclose(holder(x), plain, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
        sl.unfuse(holder)
        assert not fused(holder)


def test_nothing_else_changes():
    model = llama()
    state, classes = list(model.state_dict()), [type(m) for m in model.modules()]
    hooks = []
    model.model.norm.register_forward_hook(lambda *_: hooks.append(1))
    names = sl.fuse_norms(model)
    assert not hooks, "trying a layer out runs no hook of it"
    assert sl.fuse_norms(model) == () and len(fused(model)) == len(names) == 7
    assert list(model.state_dict()) == state and [type(m).__name__ for m in model.modules()] == [c.__name__ for c in classes]
    assert all(isinstance(m, c) for m, c in zip(model.modules(), classes, strict=True))
    loss_of(model, tokens())
    assert hooks
    sl.unfuse(model)
    assert [type(m) for m in model.modules()] == classes and "_fused" not in model.model.norm.__dict__


def test_copied_and_pickled():
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8))
    sl.fuse_norms(model)
    x = torch.randn(2, 8)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x)) and len(fused(other)) == 2
        sl.unfuse(other)
        assert torch.equal(other(x), model(x)) and not fused(other) and len(fused(model)) == 2


def test_another_call_is_the_layers_own():
    layer = nn.LayerNorm(8)
    sl.fuse_norms(layer)
    assert layer(input=torch.ones(2, 8)).shape == (2, 8)
    with pytest.raises(RuntimeError):
        layer(torch.ones(2, 9))


def test_only_modules():
    with pytest.raises(BadInput, match="torch.nn.Module"):
        sl.fuse_norms("gpt2")


def test_metrics_of_norms_that_were_not_fused_are_named(tmp_path):
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters())
    with sl.attach(model, optimizer, tmp_path, every=1, metrics=["loss", "act_kurtosis", *NORM_METRICS]) as lens:
        lens.step(one_step(model, optimizer, lens))
    reasons = dict(sl.load(tmp_path).header.coverage.not_observed)
    assert all("fuse_norms(model) before the lens was attached" in reasons[name] for name in NORM_METRICS)
    assert "act_kurtosis" not in reasons and "act_kurtosis" in sl.load(tmp_path)
