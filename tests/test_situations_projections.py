"""Which q and k a lens reads: before and after norm and rotation, from every layout of a fused projection."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from stacks import LAYOUTS, LENGTH, WIDTH, D, Fused, Stack, observed, rotated
from torch import Tensor, nn


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
