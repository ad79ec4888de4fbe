"""What the counterfactuals of precision, attention and output logits do to a training step, on a model small enough to know the answer."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tiny_incidents import BAD, WIDTH, WORDS, Loop, Tiny
from torch import Tensor, nn
from training import one_thread

import stabilitylens as sl
from stabilitylens.hooks.counterfactuals._attention import matched
from stabilitylens.hooks.counterfactuals.qk_clip import LARGEST


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def test_autocast_is_off_in_fp32(tmp_path):
    loop = Loop(autocast=torch.bfloat16)
    table = loop.table(loop.train(tmp_path), "fp32")
    steps = len(table.baseline.losses)
    assert {s["dtype"] for s in loop.seen[:steps]} == {torch.bfloat16} and {s["dtype"] for s in loop.seen[steps:]} == {torch.float32}
    assert table["fp32"].suspect is None  # bf16 has the range of fp32, so nothing is said of fp16
    assert not torch.is_autocast_enabled("cpu")


def test_weights_in_16_bit_are_fp32_for_the_trial_and_16_bit_again_after_it(tmp_path):
    loop = Loop(make=lambda: Tiny().bfloat16())
    folder = loop.train(tmp_path)
    model, optimizer = loop.parts()
    parameters, loop.seen[:] = list(model.parameters()), []
    table = sl.counterfactuals(folder, model, optimizer, loop.again, names=["fp32"])
    steps = len(table.baseline.losses)
    assert {s["dtype"] for s in loop.seen[steps:]} == {torch.float32}, table["fp32"]
    assert [p.dtype for p in model.parameters()] == [torch.bfloat16] * len(parameters)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    moments = {v.dtype for state in optimizer.state.values() for k, v in state.items() if k != "step"}
    assert moments == {torch.bfloat16}
    loop.again(model, optimizer, [torch.randint(WORDS, (4, 6))])  # it can go on


def test_nothing_in_16_bit_is_nothing_to_try(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path), "fp32", "fp32_norms_and_attention")
    assert [row.verdict for row in table.rows] == ["not applicable", "not applicable"]


def test_norms_and_attention_compute_in_fp32_and_give_the_dtype_back(tmp_path):
    inside: list[torch.dtype] = []

    class SpelledOutNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            inside.append(x.dtype)
            return (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True) + 1e-5).rsqrt() * self.weight

    class Half(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.norm = SpelledOutNorm(WIDTH)

    loop = Loop(make=lambda: Half().bfloat16())
    folder = loop.train(tmp_path)
    inside.clear()
    table = loop.table(folder, "fp32_norms_and_attention")
    half = len(inside) // 2
    assert set(inside[:half]) == {torch.bfloat16} and set(inside[half:]) == {torch.float32}, table
    assert {s["dtype"] for s in loop.seen} == {torch.bfloat16}
    assert table["fp32_norms_and_attention"].verdict == "does not avert"


def grown(model: nn.Module) -> None:
    """Logits of the second head, and of it alone, far above what QK-Clip allows."""
    with torch.no_grad():
        model.q.weight[4:] *= 60
        model.k.weight[4:] *= 60


def logits(model: nn.Module) -> Tensor:
    """Largest logit of each head, over all words at once."""
    h = model.norm(model.embed.weight)[None]
    q, k = (p(h).unflatten(-1, (2, 4)).transpose(1, 2) for p in (model.q, model.k))
    return (q @ k.transpose(-1, -2) / 2).amax((0, 2, 3)).detach()


@pytest.mark.parametrize("spelled_out", [False, True])
def test_qk_clip_shrinks_the_rows_of_the_head_that_exceeds_it(spelled_out, tmp_path):
    loop = Loop(make=lambda: Tiny(spelled_out), lr=0.0, weight_decay=0.0)
    folder = loop.train(tmp_path, prepare=grown)
    states: list[dict[str, Tensor]] = []

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        loss = loop.again(model, optimizer, batches)
        states.append(copy.deepcopy(model.state_dict()) | {"logits": logits(model)})
        return loss

    table = sl.counterfactuals(folder, *loop.parts(), watched, names=["qk_clip"])
    first, last = states[0], states[-1]
    assert first["logits"][1] > 10 * LARGEST and last["logits"][1] < 1.3 * LARGEST, table
    assert last["logits"][0] == first["logits"][0]
    shrunk = [last[f"{p}.weight"][4:] / first[f"{p}.weight"][4:] for p in "qk"]
    assert torch.allclose(shrunk[0], shrunk[1]) and float(shrunk[0].std()) < 1e-5  # the same √γ on both


def test_qk_clip_has_nothing_to_do_where_logits_are_small(tmp_path):
    loop = Loop()
    row = loop.table(loop.train(tmp_path), "qk_clip")["qk_clip"]
    assert row.verdict == "not applicable" and "above 100" in row.why


def test_rows_are_told_in_a_fused_projection_with_other_layouts():
    out = torch.randn(3, 7, 24)
    q, k, v = out.chunk(3, -1)
    heads = k.unflatten(-1, (2, 4)).transpose(1, 2)
    assert torch.equal(matched(out, heads), torch.arange(8, 16).view(2, 4))
    assert torch.equal(matched(out.transpose(0, 1), heads), torch.arange(8, 16).view(2, 4))
    interleaved = out.unflatten(-1, (2, 12))[..., 4:8].transpose(1, 2)
    assert torch.equal(matched(out, interleaved), torch.tensor([[4, 5, 6, 7], [16, 17, 18, 19]]))
    assert matched(out, torch.randn(3, 2, 7, 4)) is None


def test_qk_norm_bounds_logits_whatever_the_weights_become(tmp_path):
    loop = Loop(lr=0.0, weight_decay=0.0)
    folder, largest = loop.train(tmp_path), []
    original = F.scaled_dot_product_attention

    def growing(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        loss = loop.again(model, optimizer, batches)
        with torch.no_grad():
            model.q.weight *= 2
            model.q.bias *= 2
        return loss

    table = sl.counterfactuals(folder, *loop.parts(), growing, names=["qk_norm"], after=6)
    assert original is F.scaled_dot_product_attention and not largest
    base, normed = ([row.losses[s] for s in range(BAD + 1, BAD + 7)] for row in (table.baseline, table["qk_norm"]))
    again = loop.table(folder, "qk_norm", after=6)["qk_norm"]
    assert [again.losses[s] for s in range(BAD + 1, BAD + 7)] == pytest.approx(normed, rel=1e-3)  # growth changes nothing
    assert max(abs(a - b) for a, b in zip(base, normed, strict=True)) > 1e-2
    spelled = Loop(make=lambda: Tiny(True))
    assert spelled.table(spelled.train(tmp_path / "s"), "qk_norm")["qk_norm"].verdict == "not applicable"


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_the_z_loss_s_gradient_is_autograd_s(scale):
    from stabilitylens.hooks.counterfactuals.z_loss import COEFFICIENT, _gradient

    z = (3 * torch.randn(5, 7, dtype=torch.float64)).requires_grad_()
    targets = torch.tensor([0, 3, -100, 6, 2])
    counts = targets != -100
    (ce,) = torch.autograd.grad(scale * F.cross_entropy(z, targets), z)
    (wanted,) = torch.autograd.grad(scale * COEFFICIENT * z[counts].logsumexp(-1).square().mean(), z)
    assert torch.allclose(_gradient(z.detach(), ce, []), wanted, rtol=1e-5, atol=1e-12 * scale)


def test_the_z_loss_moves_the_weights_and_not_the_loss_that_is_told(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path), "z_loss", after=1)
    steps = len(table.baseline.losses)
    first = table.snapshot_step
    assert table["z_loss"].losses[first] == table.baseline.losses[first]
    assert not torch.equal(loop.seen[0]["grad"], loop.seen[steps]["grad"])
