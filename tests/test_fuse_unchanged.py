"""fuse_norms leaves alone what it can't know: layers that draw, store or depend on more than their input, and later changes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.fuse import FusedNorm
from stabilitylens.hooks.norm_probe import fit

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class Drops(nn.LayerNorm):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.1, self.training)


class RarelyDrops(nn.LayerNorm):
    def forward(self, x):
        return F.dropout(super().forward(x), 1e-7, self.training)


class HalvesInTraining(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * (0.5 if self.training else 1.0)


class DoublesLong(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * (2 if x.dim() > 1 and x.shape[-2] > 2 else 1)


class DoublesOne(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * (2 if x.numel() == x.shape[-1] else 1)


class AddsIn4D(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + (x.dim() == 4)


class TriplesFp64(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * (3 if x.dtype is torch.float64 else 1)


class Keeps(nn.LayerNorm):
    def forward(self, x):
        self.last = x
        return super().forward(x)


class Logs(nn.LayerNorm):
    def __init__(self, d):
        super().__init__(d)
        self.log = []

    def forward(self, x):
        self.log.append(x.shape)
        return super().forward(x)


class Counts(nn.LayerNorm):
    calls = 0

    def forward(self, x):
        Counts.calls += 1
        return super().forward(x)


class AbsoluteGain(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x, (8,), self.weight.abs(), self.bias)


class Clamps(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x).clamp(-50, 50)


class DropsNaN(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x).nan_to_num()


class OtherUnderAutocast(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * (2 if torch.is_autocast_enabled("cpu") else 1)


class Nearly(nn.RMSNorm):
    def forward(self, x):
        return super().forward(x) * (1 + 1e-3)


class Then(nn.Module):
    """Something after a norm."""

    def __init__(self, what):
        super().__init__()
        self.weight, self.what = nn.Parameter(torch.ones(8)), what

    def forward(self, x):
        h = F.layer_norm(x, (8,), self.weight)
        if self.what is None:
            return h
        return self.what(h) if callable(self.what) else h * (self.what[0] if isinstance(self.what, (list, tuple)) else self.what)


@pytest.mark.parametrize(
    "cls",
    [Drops, RarelyDrops, HalvesInTraining, DoublesLong, DoublesOne, AddsIn4D, Keeps, Logs, Counts, AbsoluteGain, Clamps, DropsNaN, OtherUnderAutocast, Nearly],
)  # fmt: skip
@pytest.mark.parametrize("training", [True, False])
def test_what_does_more_than_a_norm_is_left_alone(cls, training):
    model = nn.Sequential(cls(8)).train(training)
    before, calls = dict(model[0].__dict__), Counts.calls
    assert sl.fuse_norms(model) == () and type(model[0]) is cls
    assert model[0].__dict__ == before and Counts.calls == calls and not getattr(model[0], "log", None)


def test_a_layer_that_does_otherwise_in_fp64_runs_its_own_forward_there():
    model = nn.Sequential(TriplesFp64(8)).double()
    assert sl.fuse_norms(model) == ("0",)
    assert torch.equal(model(X.double()), 3 * F.layer_norm(X.double(), (8,)))


@pytest.mark.parametrize("what", [F.relu, torch.tanh, lambda h: 3 * h, torch.tensor(3.0), [3.0], (3.0,), 3.0])
def test_a_layer_does_not_get_the_fit_of_another_of_its_class(what):
    plain = nn.ModuleList([Then(None), Then(what)])
    model = copy.deepcopy(plain)
    assert sl.fuse_norms(model) == ("0",)
    assert all(torch.equal(a(X), b(X)) for a, b in zip(model, plain, strict=True))


def test_layers_alike_are_tried_once(monkeypatch):
    tried = []
    monkeypatch.setattr("stabilitylens.hooks.fuse.fit", lambda m: (tried.append(m), fit(m))[1])
    model = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8).eval(), nn.LayerNorm(8, eps=1e-6), nn.LayerNorm(16), nn.LayerNorm(8)])
    assert len(sl.fuse_norms(model)) == 5 and len(tried) == 3


def _parametrized(layer):
    class Positive(nn.Module):
        def forward(self, w):
            return w.abs() + 1

    parametrize.register_parametrization(layer, "weight", Positive())


CHANGES = {
    "eps": lambda m: setattr(m, "eps", 0.5),
    "no bias": lambda m: setattr(m, "bias", None),
    "no bias by registering": lambda m: m.register_parameter("bias", None),
    "no bias by hand": lambda m: m._parameters.update(bias=None),
    "parametrization": _parametrized,
    "pruning": lambda m: prune.l1_unstructured(m, "weight", 0.5),
    "patched": lambda m: setattr(m, "forward", lambda x: 2 * x),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_after_fusing_a_layer_computes_as_its_own_class_does(change):
    plain = nn.Sequential(nn.LayerNorm(8))
    with torch.no_grad():
        plain[0].weight.copy_(torch.linspace(-1, 2, 8))
        plain[0].bias.fill_(0.25)
    model = copy.deepcopy(plain)
    sl.fuse_norms(model)
    for m in (model, plain):
        CHANGES[change](m[0])
    assert torch.equal(model(X), plain(X))
    sl.unfuse(model)
    assert torch.equal(model(X), plain(X)) and not any(isinstance(m, FusedNorm) for m in model.modules())
    if change == "parametrization":
        parametrize.remove_parametrizations(model[0], "weight")
        assert type(model[0]) is nn.LayerNorm


def test_changed_between_compiled_calls_too():
    plain = nn.Sequential(nn.LayerNorm(8))
    model = copy.deepcopy(plain)
    sl.fuse_norms(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), plain(X))
    for m in (model, plain):
        m[0].eps = 0.5
    assert torch.equal(compiled(X), plain(X))


class InParts(nn.Module):
    """Its eps is that of a part."""

    def __init__(self):
        super().__init__()
        self.weight, self.part = nn.Parameter(torch.ones(8)), nn.LayerNorm(8, elementwise_affine=False)

    def forward(self, x):
        return F.layer_norm(x, (8,), self.weight, None, self.part.eps)


def test_a_part_of_a_layer_is_watched_too():
    plain = nn.Sequential(InParts())
    model = copy.deepcopy(plain)
    assert sl.fuse_norms(model) == ("0",)
    model = copy.deepcopy(model)
    for m in (model, plain):
        m[0].part.eps = 0.5
    assert torch.equal(model(X), plain(X))
    assert sl.fuse_norms(model) == ("0",) and model[0]._fused.fit.eps == 0.5 and torch.equal(model(X), plain(X))
    sl.unfuse(model)
    assert type(model[0]) is InParts and type(model[0].part) is nn.LayerNorm


def test_a_changed_layer_is_tried_again_by_fuse_norms():
    model = nn.Sequential(nn.LayerNorm(8))
    sl.fuse_norms(model)
    model[0].eps = 0.5
    assert model[0]._fused.fit is None
    assert sl.fuse_norms(model) == ("0",) and model[0]._fused.fit.eps == 0.5


def test_training_modes_casts_hooks_and_new_values_change_nothing():
    model = nn.Sequential(nn.LayerNorm(8))
    sl.fuse_norms(model)
    model.eval().bfloat16().float()
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True)
    model[0].register_full_backward_hook(lambda *_: None)
    model[0].weight = nn.Parameter(torch.full((8,), 2.0))
    assert model[0]._fused.fit is not None
    assert torch.equal(model(X), F.layer_norm(X, (8,), model[0].weight, model[0].bias))


def test_the_trial_draws_nothing_from_the_global_generator():
    model, state = nn.Sequential(Drops(8), nn.LayerNorm(8)), torch.get_rng_state()
    assert sl.fuse_norms(model) == ("1",)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("around", [lambda: torch.device("meta"), torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_the_trial_depends_on_no_context_around_it(around):
    model = nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8))
    with around():
        assert sl.fuse_norms(model) == ("0", "1")


def test_the_trial_depends_on_no_default_device_or_dtype():
    model = nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8))
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        assert sl.fuse_norms(model) == ("0", "1")
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_norms_of_x_transformers_without_a_gain_of_their_width():
    xt = pytest.importorskip("x_transformers.x_transformers")
    for layer in (xt.SimpleRMSNorm(8), xt.ScaleNorm(8), xt.ScaleNorm(8, unit_offset=True)):
        plain = nn.Sequential(layer)
        model = copy.deepcopy(plain)
        assert sl.fuse_norms(model) == ("0",)
        x = torch.cat((X, torch.zeros(2, 1, 8)), 1)
        assert torch.equal(model(x), plain(x))
        kernel_cases = pytest.importorskip("kernel_cases")
        with kernel_cases.backend("triton"):
            assert torch.allclose(model(x), plain(x), atol=1e-5)


def test_hooks_on_parts_of_a_layer_go_on_running():
    class Calls(InParts):
        def forward(self, x):
            return self.part(x) if self.weight is None else super().forward(x)

    model = nn.Sequential(Calls())
    model[0].part.register_forward_hook(lambda *_: None)
    assert sl.fuse_norms(model) == ("0.part",)


@pytest.mark.parametrize("call", [sl.fuse_norms, sl.unfuse])
@pytest.mark.parametrize("model", ["gpt2", None, 3, [nn.LayerNorm(8)], nn.LayerNorm])
def test_anything_but_a_module_is_said_in_a_sentence(call, model):
    with pytest.raises(BadInput, match=r"(fuse_norms|unfuse)\(\) needs a torch.nn.Module"):
        call(model)
