"""Where norms are put: placements, scales of depth, islands of precision, and which implementation is chosen."""

from __future__ import annotations

import math

import pytest
import torch
from norm_cases import D, tokens
from torch import nn

from stabilitylens import norms
from stabilitylens.errors import BadInput
from stabilitylens.norms import make_norm


def norm_of():
    return norms.RMSNorm(D).double()


EXPECTED = {
    "post": lambda n, f, x: n(x + f(x)),
    "pre": lambda n, f, x: x + f(n(x)),
    "peri": lambda n, f, x: x + n(f(n(x))),
    "sandwich": lambda n, f, x: x + n(f(n(x))),
    "output": lambda n, f, x: x + n(f(x)),
    "periodic": lambda n, f, x: n(x + f(n(x))),
    "parallel": lambda n, f, x: x + f(n(x)) + f(n(x)),
    "deep": lambda n, f, x: n(1.5 * x + f(x)),
    "none": lambda n, f, x: x + f(x),
    "rezero": lambda n, f, x: x,
}


@pytest.mark.parametrize("name", norms.PLACEMENTS.names())
def test_placement(name):
    branch = nn.Linear(D, D).double()
    options = {"periodic": {"layer": 6, "every": 3}, "parallel": {"others": (branch,)}, "deep": {"alpha": 1.5}}.get(name, {})
    layer, x = norms.residual(name, branch, norm_of, **options), tokens(2, 5, D)
    assert torch.allclose(layer(x), EXPECTED[name](norm_of(), branch, x))


def test_periodic_norms_come_every_so_many_layers():
    with_norm = [norms.residual("periodic", nn.Identity(), norm_of, layer=i, every=4).stream_norm is not None for i in range(1, 13)]
    assert [i for i, has in enumerate(with_norm, 1) if has] == [4, 8, 12]


def test_placement_hands_arguments_to_the_branch():
    class Masked(nn.Module):
        def forward(self, x, mask, *, scale):
            return x * mask * scale

    x = tokens(2, D)
    assert torch.equal(norms.NoNorm(Masked())(x, torch.ones(2, 1).double(), scale=2.0), 3 * x)


def test_rezero_learns_its_way_out():
    layer, x = norms.ReZero(nn.Linear(D, D)), tokens(4, D, dtype=torch.float32)
    layer(x).square().sum().backward()
    assert layer.alpha.grad != 0 and layer.branch.weight.grad.abs().max() == 0


def test_depth_scaling_divides_the_variance_by_the_layer():
    inner = norms.RMSNorm(D)
    x = tokens(64, D, dtype=torch.float32)
    assert torch.allclose(norms.DepthScaledNorm(inner, 9)(x) * 3, inner(x))


def test_deep_norm_constants():
    assert norms.deep_norm_scales(12).alpha == pytest.approx(24**0.25)
    assert norms.deep_norm_scales(12).beta == pytest.approx(96**-0.25)
    assert norms.deep_norm_scales(6, 6).alpha == pytest.approx(18**0.25)
    assert norms.deep_norm_scales(6, 6).beta == pytest.approx(72**-0.25)
    encoder = norms.deep_norm_scales(18, 6, decoder=False)
    assert encoder.alpha == pytest.approx(0.81 * (18**4 * 6) ** 0.0625)
    assert encoder.beta == pytest.approx(0.87 * (18**4 * 6) ** -0.0625)
    weight = torch.empty(400, 400)
    norms.deep_norm_init_(weight, 0.5)
    assert weight.std() == pytest.approx(0.5 * math.sqrt(2 / 800), rel=0.02)


def test_islands_stay_in_fp32_and_save_error():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(64, 64), norms.RMSNorm(64), nn.Linear(64, 64), norms.RMSNorm(64), nn.Linear(64, 64))
    x = torch.randn(256, 64) * torch.logspace(-1, 1, 64)
    x[:, 5] *= 100
    where = {"1": False, "3": False}
    for precision in ("bf16", "fp16", "int8"):
        with_islands, without = (norms.island_error(block, where, x, precision, islands) for islands in (True, False))
        assert 0 < with_islands < without, precision
    cast = norms.PrecisionIsland(norms.RMSNorm(8)).bfloat16()
    assert cast.inner.weight.dtype is torch.float32 and cast(torch.ones(2, 8).bfloat16()).dtype is torch.bfloat16


def test_the_fastest_correct_one_is_chosen(monkeypatch):
    from stabilitylens.norms import choice

    monkeypatch.setattr(choice, "ROWS", 8)
    monkeypatch.setattr(choice, "TIMES", {})
    assert norms.choose_norm("cpu", 64, torch.float32) in ("spelled_out", "torch")
    ((key, times),) = choice.TIMES.items()
    assert key == ("cpu", "rms_norm", 64, torch.float32) and set(times) == {"spelled_out", "torch"}
    choice.TIMES[key] = {"spelled_out": 1.0, "torch": 2.0}
    assert norms.choose_norm("cpu", 64, torch.float32) == "spelled_out"
    monkeypatch.setitem(choice.IMPLEMENTATIONS["rms_norm"], "torch", lambda x, w, eps: x)
    assert norms.choose_norm("cpu", 64, torch.float32, refresh=True) == "spelled_out", "what is wrong is not chosen"
    with pytest.raises(BadInput, match="layer_norm"):
        norms.choose_norm("cpu", 64, torch.float32, "batch_norm")


@pytest.mark.parametrize(
    "call",
    [
        lambda: make_norm("norm", 4), lambda: norms.residual("before", nn.Identity(), norm_of), lambda: norms.SoftCap(0.0),
        lambda: norms.PartialRMSNorm(4, p=0.0), lambda: norms.GroupNorm(10, groups=3), lambda: norms.DepthScaledNorm(nn.Identity(), 0),
        lambda: norms.QKNorm(8, "full"), lambda: norms.PeriodicNorm(nn.Identity(), norm_of, 0), lambda: norms.deep_norm_scales(0),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said_in_a_sentence(call):
    with pytest.raises(BadInput) as error:
        call()
    assert len(str(error.value)) > 20 and "\n" not in str(error.value)
