"""Forwards with statistics in which a program takes several tiles, and what of it was not finite or too large to square."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DTYPES, KERNELS, LAYOUTS, Ear, backend, parameters, poisoned, qk_norm, random

from stabilitylens.kernels import moments
from stabilitylens.kernels._byproducts import listen
from stabilitylens.kernels._gpu import shapes

NAMES = ("layer", "layer-bare", "rms-llama", "rms-llama-bias", "rms-gemma", "rms-bare", "add-rms", "add-layer", "dyt", "derf")


def several(monkeypatch, steps):
    monkeypatch.setattr(shapes, "steps", lambda x, tiles: steps)


def told(kernel, inputs):
    """Rows of input and output, and the tensors that they are of."""
    ear = Ear()
    number = listen(ear)
    with poisoned():
        out = kernel.call(*inputs, layer=number)
    out = out if isinstance(out, tuple) else (out,)
    return dict(ear.rows), {"norm_input": out[1] if kernel.residual else inputs[0], "norm_output": out[0]}


def made(name, rows, d, dtype, layout="dense"):
    kernel = KERNELS[name]
    data = [LAYOUTS[layout](random(1, rows, d, dtype=dtype, scale=2.0, shift=0.5, seed=i)) for i in range(1 + kernel.residual)]
    return kernel, data, parameters(kernel, d, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "d"), [(7, 1030), (75, 120), (5, 1024)])
@pytest.mark.parametrize("name", NAMES)
def test_programs_of_three_tiles(name, rows, d, dtype, monkeypatch):
    several(monkeypatch, 3)
    kernel, data, weights = made(name, rows, d, DTYPES[dtype], "padded")
    found, tensors = told(kernel, data + weights)
    with poisoned():
        plain = kernel.call(*data, *weights)
    assert torch.equal(tensors["norm_output"], plain[0] if kernel.residual else plain), "statistics change nothing"
    for tap, tensor in tensors.items():
        got, want = found[tap], moments(tensor)
        loose = 4 * torch.finfo(DTYPES[dtype]).eps if tap == "norm_output" else 2e-6
        assert got[0] == want[0] and got[5] == 0 and torch.isnan(got[2])
        assert abs(got[1] - want[1]) <= loose * want[2] and abs(got[3] / want[3] - 1) <= loose
        assert abs(got[4] / want[4] - 1) <= (0 if dtype == "fp32" or tap == "norm_input" else loose)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1e38])
@pytest.mark.parametrize("name", ["rms-bare", "layer-bare", "add-rms"])
def test_only_the_program_that_holds_it_reads_again(name, value, monkeypatch):
    several(monkeypatch, 2)
    kernel, data, weights = made(name, 9, 1024, torch.float32)
    data[0][0, 6, 11] = value
    found, tensors = told(kernel, data + weights)
    for tap, tensor in tensors.items():
        got, want = found[tap], moments(tensor)
        assert got[5] == want[5]
        for i in (3, 4):
            assert got[i] == want[i] or abs(got[i] / want[i] - 1) < 1e-5 or (torch.isnan(got[i]) and torch.isnan(want[i]))


def test_outputs_that_overflow_their_dtype_are_counted(monkeypatch):
    several(monkeypatch, 2)
    x, w = random(1, 6, 1024, dtype=torch.float16), torch.ones(1024, dtype=torch.float16)
    w[3] = 6e4
    x[0, :, 3] = 3.0
    found, tensors = told(KERNELS["rms-llama"], [x, w])
    assert torch.isinf(tensors["norm_output"]).any()
    assert found["norm_output"][5] == torch.isinf(tensors["norm_output"]).sum() and found["norm_input"][5] == 0
    assert found["norm_output"][4] == torch.inf


def test_large_outputs_of_small_inputs_are_squared(monkeypatch):
    several(monkeypatch, 2)
    w = torch.full((1024,), 1e30)
    found, tensors = told(KERNELS["rms-llama"], [random(1, 4, 1024, dtype=torch.float32), w])
    assert abs(found["norm_output"][3] / moments(tensors["norm_output"])[3] - 1) < 1e-5


def test_queries_and_keys_of_several_tiles(monkeypatch):
    several(monkeypatch, 2)
    ear = Ear()
    number = listen(ear)
    q, k = random(2, 40, 4, 64, dtype=torch.bfloat16), random(2, 40, 2, 64, dtype=torch.bfloat16, seed=1)
    w = torch.ones(64, dtype=torch.bfloat16)
    with backend("triton"):
        out = qk_norm(q, k, w, w, layer=number)
    for (_, got), tensor in zip(ear.rows, (q, out[0], k, out[1]), strict=True):
        want = moments(tensor)
        assert got[0] == want[0] and abs(got[3] / want[3] - 1) < 1e-2 and abs(got[4] / want[4] - 1) < 1e-2


def test_tiles_a_program_grow_with_the_work(monkeypatch):
    monkeypatch.setattr(shapes, "processors", lambda x: 132)
    x = torch.empty(1)
    assert [shapes.steps(x, tiles) for tiles in (1, 3000, 16384, 10**6)] == [1, 1, 5, shapes.STEPS]
