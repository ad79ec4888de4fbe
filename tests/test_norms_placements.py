"""Where norms are put: placements, scales of depth, islands of precision, and which implementation is chosen."""

from __future__ import annotations

import json
import math

import pytest
import torch
from norm_cases import D, tokens, without_types  # noqa: F401
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


@pytest.mark.parametrize("cast", [lambda m: m.bfloat16(), lambda m: m.half(), lambda m: m.to("cpu", torch.float16), lambda m: m.double()])
def test_an_island_keeps_the_values_of_its_weights_through_casts(cast):
    island = norms.PrecisionIsland(norms.BatchNorm(8))
    with torch.no_grad():
        island.inner.weight.copy_(torch.tensor([1.0009765, 1e6, -1e-9, *[1.0] * 5]))
        island.inner.running_var.fill_(1.0009765)
    island.inner.weight.grad = torch.full((8,), 1e6)
    before = {k: v.clone() for k, v in island.state_dict().items()}
    model = cast(nn.Sequential(nn.Linear(8, 8), island))
    assert model[0].weight.dtype is not torch.float32
    for k, v in island.state_dict().items():
        assert v.dtype is before[k].dtype and torch.equal(v, before[k]), k
    assert torch.equal(island.inner.weight.grad, torch.full((8,), 1e6))
    assert island(torch.ones(2, 8).bfloat16()).dtype is torch.bfloat16


def test_an_island_follows_moves_to_another_device():
    assert norms.PrecisionIsland(norms.RMSNorm(8)).to("meta", torch.bfloat16).inner.weight.is_meta


def test_an_island_computes_in_fp32_with_the_weights_it_was_given():
    torch.manual_seed(0)
    inner = norms.LayerNorm(64)
    inner.weight.data.add_(0.3 * torch.randn(64))
    x = torch.randn(32, 64).half()
    got = norms.PrecisionIsland(inner).half()(x)
    assert torch.equal(got, inner(x.float()).half())


def test_an_island_does_not_cast_the_norm_it_is_given():
    inner = norms.RMSNorm(8).bfloat16()
    island = norms.PrecisionIsland(inner)
    assert inner.weight.dtype is torch.bfloat16 and island.inner.weight.dtype is torch.float32
    inner = norms.RMSNorm(8)
    assert norms.PrecisionIsland(inner).inner is inner


def test_an_island_hands_on_masks_and_second_tensors():
    x, mask = torch.randn(2, 3, 8).bfloat16(), torch.tensor([[True] * 3, [True, False, False]])
    want = norms.BatchNorm(8)(x.float(), mask).bfloat16()
    assert torch.equal(norms.PrecisionIsland(norms.BatchNorm(8))(x, mask), want)
    assert torch.equal(norms.PrecisionIsland(norms.BatchNorm(8))(x, mask=mask), want)
    q, k = norms.PrecisionIsland(norms.QKNorm(8))(torch.randn(1, 2, 3, 8).half(), torch.randn(1, 1, 3, 8).half())
    assert q.dtype is k.dtype is torch.float16 and k.shape == (1, 1, 3, 8)


@pytest.fixture
def table(monkeypatch, tmp_path):
    from stabilitylens.norms import choice, timing_table

    monkeypatch.setattr(choice, "ROWS", 8)
    monkeypatch.setattr(timing_table, "MEMORY", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return choice, timing_table, tmp_path / "stabilitylens" / "norm_times.json"


def test_the_fastest_correct_one_is_chosen(table, monkeypatch):
    choice, timing_table, _ = table
    assert norms.choose_norm("cpu", 64, torch.float32) in ("spelled_out", "torch")
    ((key, times),) = timing_table.MEMORY.items()
    assert set(times) == {"spelled_out", "torch"}
    for best, other in (("spelled_out", "torch"), ("torch", "spelled_out")):
        timing_table.MEMORY[key] = {best: 1.0, other: 2.0}
        assert norms.choose_norm("cpu", 64, torch.float32) == best
    monkeypatch.setitem(choice.IMPLEMENTATIONS["rms_norm"], "torch", lambda x, w, eps: x)
    assert norms.choose_norm("cpu", 64, torch.float32, refresh=True) == "spelled_out", "what is wrong is not chosen"
    with pytest.raises(BadInput, match="layer_norm"):
        norms.choose_norm("cpu", 64, torch.float32, "batch_norm")


def test_times_are_kept_in_a_file_that_the_next_process_reads(table, monkeypatch):
    choice, timing_table, file = table
    norms.choose_norm("cpu", 64, torch.float32)
    norms.choose_norm("cpu", 64, torch.bfloat16, "layer_norm")
    kept = json.loads(file.read_text())
    assert len(kept) == 2 and all(f"torch {torch.__version__}" in key for key in kept)
    assert sum("| float32 | 64" in key for key in kept) == 1
    timing_table.MEMORY.clear()
    monkeypatch.setattr(choice, "time_norms", lambda *_: pytest.fail("it is known"))
    norms.choose_norm("cpu", 64, torch.float32)
    norms.choose_norm("cpu", 50, torch.float32)
    monkeypatch.setattr(choice, "time_norms", lambda *_: {"torch": 1.0})
    assert norms.choose_norm("cpu", 64, torch.float32, refresh=True) == "torch"
    assert {"torch": 1.0} in json.loads(file.read_text()).values() and len(json.loads(file.read_text())) == 2


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"a": 3}', '{"a": {"torch": "fast"}}'])
def test_a_damaged_table_is_measured_again(table, content):
    _, _, file = table
    file.parent.mkdir()
    file.write_text(content)
    norms.choose_norm("cpu", 64, torch.float32)
    assert len(json.loads(file.read_text())) == 1


def test_a_cache_folder_that_can_not_be_written_is_done_without(table, monkeypatch, tmp_path):
    choice, timing_table, _ = table
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    norms.choose_norm("cpu", 64, torch.float32)
    monkeypatch.setattr(choice, "time_norms", lambda *_: pytest.fail("it is in memory"))
    norms.choose_norm("cpu", 64, torch.float32)


@pytest.mark.parametrize("device", ["foo", "cuda:99", "meta", 1.5])
def test_devices_that_can_not_be_timed_are_said_in_a_sentence(device, untyped):
    with pytest.raises(BadInput, match=r"choose_norm\(\)"):
        norms.choose_norm(device, 64, torch.float32)


@pytest.mark.parametrize("dtype", [torch.int32, "float32", torch.float8_e4m3fn, None])
@pytest.mark.parametrize("d", [64, 0, -1, 8.0])
def test_widths_and_dtypes_that_can_not_be_timed_are_said_in_a_sentence(d, dtype, untyped):
    with pytest.raises(BadInput):
        norms.choose_norm("cpu", d, dtype)
    if d != 64:
        with pytest.raises(BadInput, match="width"):
            norms.choose_norm("cpu", d, torch.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: make_norm("norm", 4), lambda: norms.residual("before", nn.Identity(), norm_of), lambda: norms.SoftCap(0.0),
        lambda: norms.PartialRMSNorm(4, p=0.0), lambda: norms.GroupNorm(10, groups=3), lambda: norms.DepthScaledNorm(nn.Identity(), 0),
        lambda: norms.QKNorm(8, "full"), lambda: norms.PeriodicNorm(nn.Identity(), norm_of, 0), lambda: norms.deep_norm_scales(0),
        lambda: norms.residual("deep", nn.Identity(), norm_of), lambda: norms.residual("periodic", nn.Identity(), norm_of),
        lambda: norms.residual("pre", nn.Identity(), norm_of, alpha=1.0), lambda: norms.residual("pre", nn.Identity(), norm_of()),
        lambda: make_norm("rms_norm", 4, epsilon=1e-5), lambda: norms.RMSNorm(4, rounding="xx"), lambda: norms.QKNorm(4, over="xx"),
        lambda: norms.QKNorm(4, rounding="xx"), lambda: norms.island_error(nn.Sequential(norm_of()), {"0": False}, tokens(2, D), "fp4", True),
        lambda: norms.island_error(nn.Sequential(norm_of()), {"9": False}, tokens(2, D), "bf16", True),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said_in_a_sentence(call, untyped):
    with pytest.raises(BadInput) as error:
        call()
    assert len(str(error.value)) > 20 and "\n" not in str(error.value)
