"""What a layer is tried on, to find out which norm it is: shapes, sizes and dtypes of inputs and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_F64, _F32, _BF16, _F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Setting:
    """One way of calling a layer.

    Attributes:
        shape: of the input, but for its last axis.
        dtype: of the input.
        weights: dtype of the parameters.
        autocast: whether under autocast to bf16.
        scale: size of the parameters: about 1 and positive, or of either sign and about this size.
        bad: whether a token holds NaN and another infinity.
        must: whether a layer that does not take it is no norm.
    """

    shape: tuple[int, ...] = (6, 2)
    dtype: torch.dtype = _F32
    weights: torch.dtype = _F32
    autocast: bool = False
    scale: float | None = None
    bad: bool = False
    must: bool = False

    @property
    def dims(self) -> int:
        """Axes of the input."""
        return len(self.shape) + 1

    @property
    def dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """Of input and parameters."""
        return self.dtype, self.weights

    @property
    def seed(self) -> int:
        """Another for each shape."""
        return math.prod(self.shape) + self.dims

    def parameter(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Values that tell one form from another."""
        value = 1 + torch.rand(shape, generator=generator) if self.scale is None else self.scale * torch.randn(shape, generator=generator)
        return value.to(self.weights)

    def inputs(self, d: int, generator: torch.Generator) -> Tensor:
        """Tokens of ordinary, tiny and large size, one of zeros: eps matters to the tiny."""
        tokens = math.prod(self.shape)
        sizes = torch.tensor([1.0, 2.0, 1e-3, 1e-4, 30.0, 0.0]).repeat(tokens // 6 + 1)[:tokens, None]
        x = sizes * (torch.randn(tokens, d, generator=generator) + 0.3)
        if self.bad:
            x[0, 0], x[-1, -1] = torch.nan, torch.inf
        return x.view(*self.shape, d).to(self.dtype)


@dataclass(frozen=True)
class Trial:
    """A setting, its input and parameters, and the output and gradients that the layer made of them."""

    setting: Setting
    x: Tensor
    given: dict[str, Tensor]
    wanted: list[Tensor]


def required() -> Iterator[Setting]:
    """What a form has to agree on wherever the layer takes such an input."""
    for dtype in (_F32, _BF16, _F16):
        yield Setting(dtype=dtype, weights=dtype, must=True)
    yield Setting(scale=1.0)
    yield Setting(scale=300.0)
    yield Setting(bad=True)
    for shape in ((), (1,), (5,), (40,), (1, 1), (1, 7), (3, 33), (2, 3, 2), (1, 2, 1, 3)):
        yield Setting(shape=shape, scale=1.0)
    for dtype in (_F32, _BF16):
        yield Setting(dtype=dtype, autocast=True)


def optional() -> Iterator[Setting]:
    """Where a form does not agree, the layer keeps its own forward: several go to fp32 even from fp64."""
    yield Setting(dtype=_F64, weights=_F64)
    yield Setting(dtype=_BF16)
    yield Setting(dtype=_F16)


def results(call: Callable[[Tensor], Any], x: Tensor, parameters: list[Tensor], autocast: bool) -> list[Tensor] | None:
    """Output and gradients, None where it can't be called so."""
    leaf = x.clone().requires_grad_()
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = call(leaf)
        if not isinstance(y, Tensor) or y.shape != x.shape or not y.requires_grad:
            return None
        seed = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
        grads = torch.autograd.grad(y, [leaf, *parameters], seed, allow_unused=True)
    except Exception:  # whatever a module that is no norm does with such an input
        return None
    return None if any(g is None for g in grads) else [y.detach(), *grads]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Whether all elements are equal, NaN to NaN."""
    return all(
        x.dtype is y.dtype and (torch.equal(x, y) or torch.allclose(x, y, rtol=0.0, atol=0.0, equal_nan=True)) for x, y in zip(a, b, strict=True)
    )
