"""Norm, DyT and Derf kernels in Triton's interpreter against float64, over layouts, dtypes and sizes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernel_cases import DTYPES, GRADIENTS, KERNELS, LAYOUTS, Ear, backend, error, parameters, poisoned, qk_norm, random
from torch.utils.checkpoint import checkpoint

from stabilitylens.kernels import moments
from stabilitylens.kernels._byproducts import listen
from stabilitylens.kernels._gpu import shapes

SIZES = (1, 3, 64, 250, 1000)


def grid():
    """A fiftieth of all combinations; the others are for ``make bench``."""
    everything = itertools.product(KERNELS, DTYPES, LAYOUTS, GRADIENTS, SIZES)
    for i, (kernel, dtype, x, dy, d) in enumerate(everything):
        marks = [] if i % 53 == 0 else [pytest.mark.grid]
        yield pytest.param(kernel, dtype, x, dy, d, marks=marks, id=f"{kernel}-{dtype}-x_{x}-dy_{dy}-{d}")


def tensors(kernel, dtype, layout, d, batch=2, rows=3):
    x = LAYOUTS[layout](random(batch, rows, d, dtype=dtype, scale=2.0, shift=0.5))
    more = [LAYOUTS[layout](random(batch, rows, d, dtype=dtype, seed=1))] if kernel.residual else []
    return [x, *more], parameters(kernel, d, dtype)


def run(call, inputs, gradients):
    """Outputs, and gradients of the inputs."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = call(*leaves)
    out = out if isinstance(out, tuple) else (out,)
    return out, torch.autograd.grad(out, leaves, gradients[: len(out)])


def parts(name, data, dy):
    """The largest of what a gradient of the input is the rest of: where that is little, it is the rounding of these."""
    if name in ("dyt", "derf"):
        return float(dy.abs().max())
    rms = sum(t.double() for t in data).square().mean(-1, keepdim=True).sqrt()
    return float((dy.double().abs() / rms.clamp(1e-3, 1)).max())


@pytest.mark.parametrize(("name", "dtype", "x", "dy", "d"), list(grid()))
def test_against_float64(name, dtype, x, dy, d):
    kernel, dtype = KERNELS[name], DTYPES[dtype]
    data, weights = tensors(kernel, dtype, x, d)
    gradients = [GRADIENTS[dy](random(*data[0].shape, dtype=dtype, seed=9 + i)) for i in range(2)]
    kept = [g.clone() for g in gradients]
    with poisoned():
        out, grads = run(kernel.call, data + weights, gradients)
    exact, exact_grads = run(kernel.formula, [t.double() for t in data + weights], [g.double() for g in gradients])
    eps = torch.finfo(dtype).eps
    if dtype is torch.bfloat16 and kernel.residual:
        eps *= 2  # the sum is rounded before it is normalised
    assert all(error(a, b) < 3 * eps for a, b in zip(out, exact, strict=True))
    floors = [parts(name, data, gradients[0])] * len(data) + [float(gradients[0].abs().max())] * len(weights)
    assert all(error(a, b, floor) < 8 * eps for a, b, floor in zip(grads, exact_grads, floors, strict=True))
    assert all(map(torch.equal, gradients, kept)), "the backward wrote into dY"
    assert [o.dtype for o in out] == [dtype] * len(out) and [g.dtype for g in grads] == [dtype] * len(grads)


def narrow(monkeypatch):
    """As if no row fitted into registers."""
    for name, value in (("FORWARD_ROW", 0), ("BACKWARD_ROW", 0), ("WIDE_BLOCK", 128)):
        monkeypatch.setattr(shapes, name, value)


def told(kernel, inputs, dy):
    """What a listener is told of a forward and a backward, and the tensors of each."""
    ear = Ear()
    number = listen(ear)
    with poisoned():
        out, grads = run(lambda *t: kernel.call(*t, layer=number), inputs, (dy, torch.zeros_like(dy)))
    x = out[1] if kernel.residual else inputs[0]
    return dict(ear.rows), {"norm_input": x, "norm_output": out[0], "norm_output_grad": dy, "norm_input_grad": grads[0]}


def compare(rows, found, dtype, inexact=()):
    """Count, sum where there is one, sum of squares, largest, NaN and Inf."""
    assert list(rows) == list(found)
    for tap, tensor in found.items():
        want, got = moments(tensor), rows[tap]
        exact = tap in ("norm_input", "norm_output_grad") and tap not in inexact
        loose = 1e-5 if exact else 4 * torch.finfo(dtype).eps
        assert got[0] == want[0] and got[5] == want[5], tap
        assert torch.isnan(got[2]) and torch.isnan(got[1]) == ("grad" in tap or torch.isnan(want[1]))
        pairs = [(got[3], want[3], want[3]), (got[4], want[4], want[4])] + ([] if "grad" in tap else [(got[1], want[1], want[2])])
        for a, b, scale in pairs:
            same = (torch.isnan(a) and torch.isnan(b)) or (a == b) or abs(a - b) <= loose * abs(scale)
            assert same, (tap, a, b)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_statistics_are_those_of_the_tensors(name, wide, monkeypatch):
    if wide:
        narrow(monkeypatch)
    data, weights = tensors(KERNELS[name], torch.bfloat16, "padded", 200, rows=5)
    dy = random(*data[0].shape, dtype=torch.bfloat16, seed=9)
    # there the sum is measured as it is normalised, before it is rounded
    inexact = ("norm_input",) if name == "add-rms-fp32" else ()
    compare(*told(KERNELS[name], data + weights, dy), torch.bfloat16, inexact)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("name", ["layer", "rms-llama", "add-rms", "dyt"])
def test_what_is_not_finite_is_counted_and_goes_where_the_formula_sends_it(name, value, wide, monkeypatch):
    if wide:
        narrow(monkeypatch)
    kernel = KERNELS[name]
    data, weights = tensors(kernel, torch.float32, "dense", 130)
    data[0][0, 1, 7] = value
    dy = random(*data[0].shape, dtype=torch.float32, seed=9)
    rows, found = told(kernel, data + weights, dy)
    with backend("reference"):
        out, _ = run(kernel.call, data + weights, (dy, dy))
    assert torch.allclose(found["norm_output"][:, [0, 2]], out[0][:, [0, 2]], rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.isfinite(found["norm_output"]), torch.isfinite(out[0]))
    rows = {tap: row for tap, row in rows.items() if tap != "norm_input_grad"}
    del found["norm_input_grad"]
    compare(rows, found, torch.float32)


@pytest.mark.parametrize("name", KERNELS)
def test_rows_that_do_not_fit_into_registers(name, monkeypatch):
    narrow(monkeypatch)
    kernel = KERNELS[name]
    data, weights = tensors(kernel, torch.float32, "shifted", 333)
    gradients = [GRADIENTS["expanded"](random(*data[0].shape, dtype=torch.float32, seed=9 + i)) for i in range(2)]
    with poisoned():
        out, grads = run(kernel.call, data + weights, gradients)
    exact, exact_grads = run(kernel.formula, [t.double() for t in data + weights], [g.double() for g in gradients])
    floor = float(gradients[0].abs().max())
    assert all(error(a, b, floor) < 1e-6 for a, b in zip(out + grads, exact + exact_grads, strict=True))


def test_a_large_mean_cancels_nothing(monkeypatch):
    x = random(4, 300, dtype=torch.float32, shift=1e3)
    want = KERNELS["layer-bare"].formula(x.double())
    with poisoned():
        assert error(KERNELS["layer-bare"].call(x), want) < 2e-4
        narrow(monkeypatch)
        assert error(KERNELS["layer-bare"].call(x), want) < 2e-4


@pytest.mark.parametrize("name", KERNELS)
def test_no_rows(name):
    kernel = KERNELS[name]
    data, weights = tensors(kernel, torch.float32, "dense", 16, batch=0)
    with poisoned():
        out, grads = run(kernel.call, data + weights, (torch.zeros(0, 3, 16),) * 2)
    assert out[0].shape == (0, 3, 16) and all(torch.equal(g, torch.zeros_like(w)) for g, w in zip(grads[len(data):], weights, strict=True))


@pytest.mark.parametrize("name", KERNELS)
def test_differentiated_twice(name):
    kernel = KERNELS[name]
    data, weights = tensors(kernel, torch.float32, "dense", 12)
    seconds = []
    for way, call, inputs in (("triton", kernel.call, data + weights), ("reference", kernel.formula, [t.double() for t in data + weights])):
        with backend(way):
            leaves = [t.detach().requires_grad_() for t in inputs]
            out = call(*leaves)
            loss = sum(o.sin().sum() for o in (out if isinstance(out, tuple) else (out,)))
            first = torch.autograd.grad(loss, leaves, create_graph=True)
            seconds.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))
    assert all(error(a, b) < 1e-4 for a, b in zip(*seconds, strict=True))


@pytest.mark.parametrize("name", ["layer", "add-rms", "derf"])
def test_the_same_when_checkpointed_and_told_once(name):
    kernel = KERNELS[name]
    ear = Ear()
    number = listen(ear)
    data, weights = tensors(kernel, torch.float32, "dense", 20)
    dy = random(*data[0].shape, dtype=torch.float32, seed=9)
    with backend("triton"):
        plain = run(kernel.call, data + weights, (dy, dy))
        again = run(lambda *t: checkpoint(lambda *u: kernel.call(*u, layer=number), *t, use_reentrant=False), data + weights, (dy, dy))
    assert all(map(torch.equal, plain[0] + plain[1], again[0] + again[1]))
    assert [tap for tap, _ in ear.rows] == ["norm_input", "norm_output", "norm_output_grad", "norm_input_grad"]


COMPILED = """
import torch
from kernel_cases import KERNELS, Ear, backend, parameters, random
from stabilitylens.kernels._byproducts import listen
for name, kernel in KERNELS.items():
    torch._dynamo.reset()
    ear = Ear()
    number = listen(ear)
    inputs = [random(2, 3, 20, dtype=torch.float32, seed=i) for i in range(1 + kernel.residual)] + parameters(kernel, 20, torch.float32)
    call = lambda *t: kernel.call(*t, layer=number)
    outs = []
    with backend("triton"):
        for run in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
            leaves = [t.clone().requires_grad_() for t in inputs]
            out = run(*leaves)
            out = out if isinstance(out, tuple) else (out,)
            outs.append([*out, *torch.autograd.grad(sum(o.sin().sum() for o in out), leaves)])
    assert all(map(torch.equal, *outs)), name
    assert len(ear.rows) == 8, (name, ear.rows)
"""


def test_one_graph_when_compiled_and_told_of_what_runs():
    """In a process of its own: functions that check the types of their arguments can't be compiled."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", COMPILED], check=True, env=environment)


def test_operators_hold_what_they_promise():
    x, w, b = (random(*s, dtype=torch.float32).requires_grad_() for s in ((3, 4), (4,), (4,)))
    a = torch.tensor(0.5, requires_grad=True)
    import stabilitylens.kernels._norm_ops  # noqa: F401
    import stabilitylens.kernels._qk_norm_op  # noqa: F401
    import stabilitylens.kernels._squash_op  # noqa: F401

    ops = torch.ops.stabilitylens
    torch.library.opcheck(ops.rms_norm.default, (x, None, w, None, 1e-6, 2, -1))
    torch.library.opcheck(ops.layer_norm.default, (x, x.detach().requires_grad_(), w, b, 1e-6, 0, -1))
    torch.library.opcheck(ops.squash.default, (x, a, a.detach().requires_grad_(), w, b, True, False, -1))
    torch.library.opcheck(ops.qk_norm.default, (x, x.detach().requires_grad_(), w, b, 1e-6, 2, -1))
    assert torch._C._dispatch_has_kernel_for_dispatch_key("stabilitylens::layer_norm", "AutocastCUDA")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads_last", [True, False])
def test_queries_and_keys_in_one_launch(dtype, heads_last):
    dtype = DTYPES[dtype]
    shapes_ = ((2, 5, 4, 24), (2, 5, 2, 24)) if heads_last else ((2, 4, 5, 24), (2, 2, 5, 24))
    q, k = (random(*s, dtype=dtype, seed=i) for i, s in enumerate(shapes_))
    if heads_last:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    weights = [random(24, dtype=dtype, shift=1.0, scale=0.2, seed=i) for i in (3, 4)]
    gradients = [random(*t.shape, dtype=dtype, seed=7) for t in (q, k)]
    rms = KERNELS["rms-llama"].formula
    exact = run(lambda q, k, a, b: (rms(q, a), rms(k, b)), [t.double() for t in (q, k, *weights)], [g.double() for g in gradients])
    with poisoned():
        got = run(qk_norm, [q, k, *weights], gradients)
    eps = torch.finfo(dtype).eps
    assert all(error(a, b) < 4 * eps for a, b in zip(got[0] + got[1], exact[0] + exact[1], strict=True))
    assert got[0][0].stride() == q.stride(), "the layout of the heads stays"


def test_the_interpreted_kernels_are_deterministic():
    kernel = KERNELS["layer"]
    data, weights = tensors(kernel, torch.float32, "dense", 64, batch=8)
    dy = random(*data[0].shape, dtype=torch.float32)
    with backend("triton"):
        first, second = (run(kernel.call, data + weights, (dy,)) for _ in range(2))
    assert all(map(torch.equal, first[0] + first[1], second[0] + second[1]))


def test_the_rounding_modes_match_plain_pytorch_in_nearly_every_element():
    x = random(64, 256, dtype=torch.bfloat16, scale=2.0)
    w = random(256, dtype=torch.bfloat16, shift=1.0, scale=0.2)
    for name in ("rms-llama", "rms-gemma", "layer"):
        weights = [w] if name != "layer" else [w, w]
        outs = []
        for way in ("triton", "reference"):
            with backend(way):
                outs.append(KERNELS[name].call(x, *weights))
        assert (outs[0] != outs[1]).float().mean() < 1e-3, name
