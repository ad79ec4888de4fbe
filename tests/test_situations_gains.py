"""Gains of norms and slopes of what stands in for norms, and the kurtosis of a stream."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from stacks import LAYOUTS, LENGTH, D, Fused, Stack, observed, rotated
from torch import Tensor, nn


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


class GainFirst(nn.Module):
    """w · x · 1/rms: the gain multiplies before the root is taken."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.w, self.how = nn.Parameter(torch.linspace(-3, 1, D)), how

    def forward(self, x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True) + 1e-6
        if self.how == "rsqrt":
            return self.w * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.how == "sqrt":
            return x * self.w / mean.sqrt()
        return self.w * x * mean**-0.5 if self.how == "power, gain first" else x * mean**-0.5 * self.w


class GainAround(nn.Module):
    """The gain is in the module around the one that normalises."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(D, elementwise_affine=False) if how == "layer" else nn.RMSNorm(D, elementwise_affine=False)
        self.w = nn.Parameter(torch.linspace(-3, 1, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (self.w + 0.0)


WAYS = {
    **{how: lambda how=how: GainFirst(how) for how in ("rsqrt", "sqrt", "power, gain first", "power, gain last")},
    **{f"around a {how} norm": lambda how=how: GainAround(how) for how in ("layer", "rms")},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_gain_is_known_by_what_it_does_whatever_the_order_and_the_module(way, tmp_path):
    run = observed(Stack(lambda: nn.Sequential(WAYS[way](), nn.Linear(D, D))), torch.randn(2, LENGTH, D), tmp_path)
    by_name = dict(zip(run["norm_gain"].labels["norm"], run["norm_gain"].values[0], strict=True))
    assert by_name.keys() == {f"blocks.{i}.{name}" for i in range(2) for name in ("norm", "branch.0")}
    assert by_name["blocks.0.branch.0"] == pytest.approx(torch.linspace(-3, 1, D).abs().mean().item(), rel=1e-5)


def test_a_scale_on_a_branch_that_is_normalised_afterwards_is_no_gain(tmp_path):
    class ScaledFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.gamma = nn.Linear(D, D), nn.Parameter(torch.full((D,), 0.1))

        def forward(self, x):
            y = self.lin(x) * self.gamma
            return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)

    run = observed(Stack(ScaledFirst), torch.randn(2, LENGTH, D), tmp_path)
    assert set(run["norm_gain"].labels["norm"]) == {"blocks.0.norm", "blocks.1.norm"}


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
