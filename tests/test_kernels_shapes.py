"""Kernels read what they are given and nothing beside it: wide rows of every family, parameters and residuals of any layout or a wrong shape."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from kernel_cases import DTYPES, KERNELS, Ear, backend, error, parameters, poisoned, qk_norm, random

from stabilitylens.errors import BadInput
from stabilitylens.kernels import moments
from stabilitylens.kernels._byproducts import listen
from stabilitylens.kernels._gpu import norm, pair, squash_launch
from stabilitylens.kernels.layer_norm import add_layer_norm, layer_norm
from stabilitylens.kernels.qk_norm import qk_norm_reference
from stabilitylens.kernels.rms_norm import add_rms_norm, rms_norm
from stabilitylens.kernels.squash import squash
from stabilitylens.norms import DyT, LayerNorm, RMSNorm

WIDE = (16385, 65536)


def both_ways(call, formula, inputs, gradients):
    """Outputs and gradients of the kernels, and in float64."""
    outs = []
    for way, function, cast in (("triton", call, lambda t: t), ("reference", formula, torch.Tensor.double)):
        with backend(way):
            leaves = [cast(t).detach().requires_grad_() for t in inputs]
            out = function(*leaves)
            out = out if isinstance(out, tuple) else (out,)
            outs.append([*out, *torch.autograd.grad(out, leaves, [cast(g) for g in gradients[: len(out)]])])
    return outs


@pytest.mark.parametrize("d", WIDE)
@pytest.mark.parametrize("name", [*KERNELS, "qk"])
def test_rows_of_more_than_16384_elements_in_every_family(name, d):
    if name == "qk":
        w = [random(d, dtype=torch.float32, shift=1.0, scale=0.2, seed=i) for i in (3, 4)]
        inputs, call, formula = [random(2, d, dtype=torch.float32), random(3, d, dtype=torch.float32, seed=1), *w], qk_norm, qk_norm_reference
    else:
        kernel = KERNELS[name]
        inputs = [random(2, d, dtype=torch.float32, seed=i) for i in range(1 + kernel.residual)] + parameters(kernel, d, torch.float32)
        call, formula = kernel.call, kernel.formula
    gradients = [random(*t.shape, dtype=torch.float32, seed=9) for t in (inputs[0], inputs[min(1, len(inputs) - 1)])]
    with poisoned():
        got, want = both_ways(call, formula, inputs, gradients)
    assert all(error(a, b, 1.0) < 2e-6 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("sizes", [(16385, 64), (64, 16385)])
def test_statistics_of_queries_and_keys_of_which_one_is_wide(sizes):
    ear = Ear()
    number = listen(ear)
    q, k = (random(3, d, dtype=torch.bfloat16, seed=d) for d in sizes)
    with poisoned():
        out = qk_norm(q, k, *(torch.ones(d, dtype=torch.bfloat16) for d in sizes), layer=number)
    for (_, got), tensor in zip(ear.rows, (q, out[0], k, out[1]), strict=True):
        want = moments(tensor)
        assert got[0] == want[0] and abs(got[3] / want[3] - 1) < 1e-2 and got[4] == want[4]


def layouts(values):
    """The same numbers strided, and where they are all alike expanded."""
    strided = torch.full((2 * len(values),), torch.nan)
    strided[::2] = values
    return {"strided": strided[::2], "flipped view": values.flip(0).as_strided((len(values),), (1,)).flip(0), "expanded": torch.tensor([1.7]).expand(len(values))}


@pytest.mark.parametrize("layout", ["strided", "flipped view", "expanded"])
@pytest.mark.parametrize("name", ["layer", "rms-llama-bias", "rms-gemma", "dyt", "derf", "add-layer", "qk"])
def test_parameters_of_any_layout(name, layout):
    def strange(p):
        return layouts(p)[layout] if p.dim() else p

    d = 48
    if name == "qk":
        data, call = [random(2, 3, d, dtype=torch.float32, seed=i) for i in range(2)], qk_norm
        weights = [strange(random(d, dtype=torch.float32, seed=i, shift=1.0)) for i in (3, 4)]
    else:
        kernel = KERNELS[name]
        data, call = [random(2, 3, d, dtype=torch.float32, seed=i) for i in range(1 + kernel.residual)], kernel.call
        weights = [strange(p) for p in parameters(kernel, d, torch.float32)]
    got, want = both_ways(call, call, [*data, *weights], [random(2, 3, d, dtype=torch.float32, seed=9)] * 2)
    assert all(error(a, b, 1.0) < 2e-6 for a, b in zip(got, want, strict=True))


X = torch.ones(2, 3, 16)


@pytest.fixture()
def unchecked():
    """As for users, for whom annotations are not checked."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    "call",
    [
        lambda: RMSNorm(8)(X), lambda: LayerNorm(8)(X), lambda: DyT(8)(X), lambda: rms_norm(X, torch.ones(32)), lambda: rms_norm(X, torch.ones(16), torch.ones(15)),
        lambda: layer_norm(X, torch.ones(16), torch.ones(15)), lambda: layer_norm(X, torch.ones(1)), lambda: squash(X, "erf", X[0, 0, 0], None, torch.ones(16), torch.ones(7)),
        lambda: squash(X, "erf", torch.ones(3), None, torch.ones(16), None), lambda: qk_norm(X, X, torch.ones(16), torch.ones(8)), lambda: qk_norm(X, X, torch.ones(17), torch.ones(16)),
        lambda: add_rms_norm(X, X[..., :8], torch.ones(16)), lambda: add_layer_norm(X, torch.ones(4, 3, 16), None),
    ],
)  # fmt: skip
def test_what_the_reference_refuses_the_kernels_refuse_with_the_same_error(unchecked, call):
    said = []
    for way in ("reference", "triton"):
        with backend(way), pytest.raises((RuntimeError, BadInput)) as caught:
            call()
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


def test_shapes_that_the_reference_broadcasts(unchecked):
    calls = [
        lambda: (rms_norm(X, torch.full((1,), 2.0)),), lambda: (squash(X, "tanh", torch.full((1,), 0.5), None, torch.ones(16), None),),
        lambda: (squash(X, "tanh", torch.full((3, 1), 0.5), None, torch.ones(1), None),), lambda: (rms_norm(X, torch.ones(3, 16)),),
    ]  # fmt: skip
    for call in calls:
        outs = []
        for way in ("reference", "triton"):
            with backend(way):
                outs.append(call())
        assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(*outs, strict=True))


@pytest.mark.parametrize("round_sum", [True, False])
@pytest.mark.parametrize("shape", [(1, 16), (16,), (3, 16), (2, 1, 16), (2, 3, 1), (5, 2, 3, 16)])
@pytest.mark.parametrize("call", [add_rms_norm, add_layer_norm])
def test_a_residual_is_broadcast_as_in_the_reference(call, shape, round_sum):
    x, r, w = random(2, 3, 16, dtype=torch.float32), random(*shape, dtype=torch.float32, seed=1), torch.linspace(0.5, 1.5, 16)
    gradients = [random(*torch.broadcast_shapes(x.shape, r.shape), dtype=torch.float32, seed=i) for i in (7, 8)]
    with poisoned():
        got, want = both_ways(lambda *t: call(*t, round_sum=round_sum), lambda *t: call(*t, round_sum=round_sum), [x, r, w], gradients)
    assert all(a.shape == b.shape and error(a, b, 1.0) < 2e-6 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("round_sum", [True, False])
@pytest.mark.parametrize(("x", "residual", "w"), [("bf16", "fp32", "bf16"), ("fp32", "bf16", "fp32"), ("bf16", "bf16", "fp32"), ("bf16", "bf16", "bf16")])
@pytest.mark.parametrize("call", [add_rms_norm, add_layer_norm])
def test_sums_have_the_dtype_and_the_rounding_of_the_reference(call, x, residual, w, round_sum):
    a, b = random(4, 96, dtype=DTYPES[x]), random(4, 96, dtype=DTYPES[residual], seed=1)
    weight = random(96, dtype=DTYPES[w], shift=1.0, scale=0.2, seed=2)
    outs = []
    for way in ("triton", "reference"):
        with backend(way):
            try:
                outs.append(call(a, b, weight, round_sum=round_sum))
            except RuntimeError as refused:
                outs.append(str(refused))
    if isinstance(outs[1], str):
        assert outs[0] == outs[1]
    else:
        assert all(g.dtype is r.dtype and (g != r).float().mean() < (3e-3 if r.dtype is torch.bfloat16 else 1) and error(g, r.double()) < 1e-2 for g, r in zip(*outs, strict=True))


def test_launches_themselves_refuse_a_parameter_of_another_length():
    x, short, a = torch.ones(2, 16), torch.ones(8), torch.tensor(0.5)
    rms = norm.Mode(False, norm.ROUNDINGS["llama"])
    for launch in (
        lambda: norm.forward(x, None, short, None, 1e-6, rms, False), lambda: norm.forward(x, x[:1], None, None, 1e-6, rms, False),
        lambda: norm.backward(x, None, x, short, False, a, a, rms, False), lambda: pair.pair(x, x, x[0], short, 1e-6, rms, False),
        lambda: squash_launch.forward(x, a, None, x[0], short, False, False, False), lambda: squash_launch.backward(x, x, a, None, short, False, False, False),
    ):  # fmt: skip
        with pytest.raises(BadInput, match="shape"):
            launch()
