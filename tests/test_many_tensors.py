"""Sums of squares of many tensors, and Adam's ratio, against fp64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stabilitylens.kernels import adam_ratio, norm_moments, sums_of_squares

SIZES = st.lists(st.sampled_from([0, 1, 7, 4095, 4096, 4097, 8192, 12289, 300_000]), min_size=0, max_size=5)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])


@given(SIZES, st.lists(DTYPES, min_size=5, max_size=5), st.floats(-3, 3))
def test_sums_of_squares_are_those_of_fp64(sizes: list[int], dtypes: list[torch.dtype], decades: float) -> None:
    tensors = [(torch.randn(n) * 10**decades).to(dtype) for n, dtype in zip(sizes, dtypes, strict=False)]
    expected = torch.stack([x.double().square().sum() for x in tensors] or [torch.zeros(0)])
    torch.testing.assert_close(sums_of_squares(tensors), expected.double().reshape(-1), rtol=3e-6, atol=0)


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1.1])
def test_equal_elements_are_the_worst_case(value: float) -> None:
    x = torch.full((1 << 16,), value)
    assert abs(sums_of_squares([x])[0] / x.double().square().sum() - 1) < 1e-6


def test_the_error_is_that_of_a_row_however_long_the_tensor_is() -> None:
    x = torch.randn(1 << 24, generator=torch.Generator().manual_seed(0))
    expected = x.double().square().sum()
    assert abs(sums_of_squares([x])[0] / expected - 1) < 1e-6
    assert abs(torch.dot(x, x).double() / expected - 1) > 1e-5  # a plain fp32 sum is worse: the test can fail


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded", "scalar", "grad"])
def test_any_layout(layout: str) -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    tensor = {
        "transposed": x.T, "strided": x[::3, ::2], "expanded": x[:, :1].expand(64, 96), "scalar": x[0, 0], "grad": x.requires_grad_(),
    }[layout]  # fmt: skip
    total = sums_of_squares([tensor])
    assert not total.requires_grad
    torch.testing.assert_close(total[0], tensor.detach().double().square().sum(), rtol=1e-6, atol=0)


def test_what_overflows_fp32_is_finite_and_what_is_not_finite_is_counted() -> None:
    large, bad = torch.full((5000,), 1e30), torch.ones(10)
    bad[3], bad[4] = math.nan, math.inf
    table = norm_moments([large, bad, torch.zeros(0), torch.ones(2, 3)])
    assert table[:, 0].tolist() == [5000, 10, 0, 6]
    assert table[0, 3].item() == pytest.approx(5e63)
    assert math.isnan(table[1, 3])
    assert table[2:, 3].tolist() == pytest.approx([0, 6])
    assert table[:, 5].tolist() == [0, 2, 0, 0]
    assert table[:, 1:3].isnan().all()
    assert (table[:, 4] == -math.inf).all()


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)])
@pytest.mark.parametrize("shape", [(7,), (300, 1000), (0,)])
@pytest.mark.parametrize("step", [1, torch.tensor(20.0)])
def test_adam_ratio_is_its_definition(shape: tuple[int, ...], dtypes: tuple[torch.dtype, torch.dtype], step: torch.Tensor | int) -> None:
    torch.manual_seed(0)
    grad, moment = torch.randn(shape).to(dtypes[0]), (torch.rand(shape) * 1e-3).to(dtypes[1])
    moment.view(-1)[: moment.numel() // 3] = 1e-18
    row = adam_ratio(grad, moment, step, 0.95, 1e-8)
    corrected = moment.double() / (1 - 0.95 ** float(step))
    torch.testing.assert_close(row[1], (grad.double() ** 2 / corrected.clamp(min=1e-16)).sum(), rtol=1e-5, atol=0)
    assert row[0] == grad.numel()
    assert row[2] == (corrected < 1e-16).sum()
