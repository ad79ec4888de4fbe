"""What stands in for a layer on a GPU gives the dtype and the rounding of the layer's own formula, for all dtypes of input and weight."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import DTYPES, Ear, backend, poisoned, random
from test_architectures import DATA, build, first_tensor
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import stabilitylens as sl
from stabilitylens.hooks.norm_forms import FORMS
from stabilitylens.kernels._byproducts import listen

D = 96
#: share of the elements whose last bit may differ since sums are taken in another order
STRAY = 3e-3


def result(call, x, *parameters):
    """Outputs and gradients; None where these dtypes are refused."""
    leaves = [t.detach().requires_grad_() for t in (x, *parameters) if t is not None]
    given = iter(leaves)
    try:
        y = call(*(None if t is None else next(given) for t in (x, *parameters)))
    except RuntimeError as error:
        assert "dtype" in str(error), error
        return None
    seed = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, seed)]


def alike(got, want):
    """In dtype, and in nearly every element; the others are one step of the dtype off, gradients a few."""
    assert [t.dtype for t in got] == [t.dtype for t in want]
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        off = (a.double() - b.double()).abs()
        if i:  # gradients pass through what was rounded to the coarsest dtype there is
            assert off.max() <= 32 * max(torch.finfo(t.dtype).eps for t in got) * b.double().abs().max().clamp(min=1)
        else:
            assert (off <= (8 if b.dtype is torch.float32 else 1) * torch.finfo(b.dtype).eps * b.double().abs().clamp(min=1)).all()
            assert b.dtype is torch.float32 or (a != b).float().mean() < STRAY


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("x_dtype", "w_dtype"), list(itertools.product(DTYPES, DTYPES)))
@pytest.mark.parametrize("form", FORMS)
def test_dtypes_and_rounding_of_a_form_are_those_of_its_formula(form, x_dtype, w_dtype, with_bias):
    if with_bias and (form == "rms_t5" or form.startswith("unit")):
        pytest.skip("of a form that has no bias")
    x = random(6, 7, D, dtype=DTYPES[x_dtype], scale=2.0)
    w, b = (random(D, dtype=DTYPES[w_dtype], scale=0.2, shift=s, seed=i) for i, s in ((1, 1.0), (2, 0.0)))
    parameters = (w, b if with_bias else None)
    eps = 1e-5 if FORMS[form].with_eps else 0.0
    want = result(lambda *t: FORMS[form].formula(*t, eps), x, *parameters)
    with poisoned():
        got = result(lambda *t: FORMS[form].launch(*t, eps, -1), x, *parameters)
    assert (got is None) == (want is None)
    if want is not None:
        alike(got, want)


@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_dtypes_of_a_form_without_a_weight(form, x_dtype):
    x = random(6, 7, D, dtype=DTYPES[x_dtype], scale=2.0)
    want = result(lambda t: FORMS[form].formula(t, None, None, 1e-5), x)
    with poisoned():
        alike(result(lambda t: FORMS[form].launch(t, None, None, 1e-5, -1), x), want)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("weight", [None, "own", "fp32"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1.0, 0.3, 0.03, 1e-3])
def test_the_eps_that_torch_takes_by_default_is_that_of_fp32(size, dtype, weight):
    x = random(8, D, dtype=DTYPES[dtype], scale=size)
    w = None if weight is None else torch.ones(D, dtype=DTYPES[dtype if weight == "own" else weight])
    with poisoned():
        got = FORMS["rms_torch"].launch(x, w, None, None, -1)
    alike([got], [F.rms_norm(x, (D,), w)])


@pytest.mark.parametrize("form", FORMS)
def test_the_usual_eps_of_a_form_is_that_of_its_formula(form):
    x = random(8, D, dtype=torch.float32, scale=1e-3)
    with poisoned():
        got = FORMS[form].launch(x, None, None, None, -1)
    alike([got], [FORMS[form].formula(x, None, None, None)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_a_token_of_zeros_is_as_in_the_formula(form, dtype):
    x = random(1, 3, 8, dtype=DTYPES[dtype])
    x[0, 1] = 0
    w = random(8, dtype=DTYPES[dtype], shift=1.0, scale=0.2, seed=1)
    eps = 1e-5 if FORMS[form].with_eps else 0.0
    want = result(lambda *t: FORMS[form].formula(*t, None, eps), x, w)
    with poisoned():
        got = result(lambda *t: FORMS[form].launch(*t, None, eps, -1), x, w)
    for a, b in zip(got, want, strict=True):
        # F.normalize itself makes NaN of zeros in fp16, where its 1e-12 is 0
        assert torch.equal(a.isnan(), b.isnan()) and (b.isfinite().all() or (form.startswith("unit") and dtype == "fp16"))
        assert torch.allclose(a.double(), b.double(), rtol=16 * torch.finfo(b.dtype).eps, atol=16 * torch.finfo(b.dtype).eps, equal_nan=True)
    assert torch.equal(got[0][0, 1].nan_to_num(), want[0][0, 1].nan_to_num())


def test_a_lens_is_told_also_where_the_formula_runs_on_a_gpu():
    ear = Ear()
    number = listen(ear)
    x = random(2, 3, D, dtype=torch.float32).requires_grad_()
    with backend("triton"):
        FORMS["rms_t5"].launch(x, torch.ones(D, dtype=torch.bfloat16), None, 1e-6, number).float().sum().backward()
    assert {tap for tap, _ in ear.rows} == {"norm_input", "norm_output", "norm_output_grad"}


@pytest.fixture()
def autocast():
    """As in a CUDA autocast to bf16, on a machine that may have no such device."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with FakeTensorMode():
        yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.parametrize("w_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("x_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_under_cuda_autocast_returns_the_dtype_of_its_formula(autocast, form, x_dtype, w_dtype):
    x, w = (torch.empty(s, dtype=DTYPES[t], device="cuda") for s, t in (((4, D), x_dtype), ((D,), w_dtype)))
    want = FORMS[form].formula(x, w, None, 1e-5)
    assert FORMS[form].launch(x, w, None, 1e-5, -1).dtype is want.dtype


def test_operators_have_autocast_where_those_of_torch_have():
    import stabilitylens.kernels._norm_ops as ops

    def has(name):
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")

    assert has("aten::rms_norm") and has("aten::layer_norm")
    assert all(has(f"stabilitylens::{n}") for n in ops.CAST) and not any(has(f"stabilitylens::{n}") for n in ops.KEPT)


def t5(dtype):
    """As transformers loads it in 16 bits: the feed-forward's last projection stays in fp32."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config).eval().to(dtype)
    for name, module in model.named_modules():
        if name.endswith(".wo"):
            module.float()
    ids = torch.arange(18).view(2, 9)
    return model, {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_t5_whose_last_projection_stays_in_fp32(dtype):
    model, kwargs = t5(DTYPES[dtype])
    same_on_the_kernels(model, kwargs, 0.03)


def test_x_transformers_with_an_embedding_of_zeros():
    x_transformers = pytest.importorskip("x_transformers")
    torch.manual_seed(0)
    layers = x_transformers.Decoder(dim=32, depth=1, heads=2, use_rmsnorm=True, rotary_pos_emb=True)
    model = x_transformers.TransformerWrapper(num_tokens=20, max_seq_len=16, use_abs_pos_emb=False, attn_layers=layers)
    with torch.no_grad():
        model.token_emb.emb.weight[0] = 0
    same_on_the_kernels(model.eval(), {"x": torch.tensor([[3, 4, 0, 0]])}, 2e-4)


def same_on_the_kernels(model: nn.Module, kwargs, limit):
    with torch.no_grad():
        want = first_tensor(model(**kwargs))
        assert sl.fuse_norms(model)
        with backend("triton"):
            got = first_tensor(model(**kwargs))
    assert got.dtype is want.dtype and want.isfinite().all()
    assert (got.double() - want.double()).abs().max() < limit * want.double().abs().max()


@pytest.mark.skipif(not (DATA / "truth.jsonl").exists(), reason="STABILITYLENS_DATA is not set")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["phi", "glm4_moe", "olmo", "cohere", "t5", "afmoe"])
def test_architectures_on_the_kernels_compute_the_same(name, dtype):
    model, kwargs = build(name, "eager")
    model = model.eval().to(DTYPES[dtype])
    kwargs = {k: v.to(DTYPES[dtype]) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in kwargs.items()}
    same_on_the_kernels(model, kwargs, 2e-4 if dtype == "fp32" else 0.06)
