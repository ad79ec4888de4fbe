"""What the tests of the kernels share: Triton in its interpreter, layouts of tensors, and references in float64."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from stabilitylens.kernels._choice import backend, interpreted  # noqa: E402
from stabilitylens.kernels.layer_norm import add_layer_norm, layer_norm  # noqa: E402
from stabilitylens.kernels.qk_norm import qk_norm  # noqa: E402
from stabilitylens.kernels.rms_norm import add_rms_norm, rms_norm  # noqa: E402
from stabilitylens.kernels.squash import squash  # noqa: E402

if not interpreted():
    pytest.skip("Triton does not run in its interpreter", allow_module_level=True)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _dense(values: Tensor) -> Tensor:
    return values.clone()


def _padded(values: Tensor) -> Tensor:
    wide = values.new_full((*values.shape[:-1], values.shape[-1] + 3), torch.nan)
    wide[..., : values.shape[-1]] = values
    return wide[..., : values.shape[-1]]


def _transposed(values: Tensor) -> Tensor:
    return values.transpose(-1, -2).contiguous().transpose(-1, -2)


def _shifted(values: Tensor) -> Tensor:
    room = values.new_full((values.numel() + 1,), torch.nan)
    room[1:] = values.flatten()
    return room[1:].view(values.shape)


def _permuted(values: Tensor) -> Tensor:
    return values.transpose(0, 1).contiguous().transpose(0, 1)


def _expanded(values: Tensor) -> Tensor:
    return values[:1, :1, :1].expand(values.shape)


LAYOUTS = {"dense": _dense, "padded": _padded, "transposed": _transposed, "shifted": _shifted, "permuted": _permuted}
GRADIENTS = LAYOUTS | {"expanded": _expanded}
del GRADIENTS["permuted"]


def random(*shape: int, dtype=torch.float64, scale: float = 1.0, shift: float = 0.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, dtype=torch.float64, generator=generator) + shift).to(dtype)


@dataclass(frozen=True)
class Kernel:
    """A function of a tensor and parameters, its formula, and the shapes of the parameters by d."""

    call: object
    formula: object
    parameters: object
    residual: bool = False


def _normed(x: Tensor, eps: float, centred: bool) -> Tensor:
    h = x - x.mean(-1, keepdim=True) if centred else x
    return h / (h.square().mean(-1, keepdim=True) + eps).sqrt()


def _affine(d):
    return [("w", (d,)), ("b", (d,))]


KERNELS = {
    "layer": Kernel(lambda x, w, b, **o: layer_norm(x, w, b, 1e-5, **o), lambda x, w, b: _normed(x, 1e-5, True) * w + b, _affine),
    "layer-bare": Kernel(lambda x, **o: layer_norm(x, None, None, 1e-5, **o), lambda x: _normed(x, 1e-5, True), lambda d: []),
    "rms-fp32-bias": Kernel(partial(rms_norm, rounding="fp32"), lambda x, w, b: _normed(x, 1e-6, False) * w + b, _affine),
    "rms-llama": Kernel(rms_norm, lambda x, w: _normed(x, 1e-6, False) * w, lambda d: [("w", (d,))]),
    "rms-llama-bias": Kernel(rms_norm, lambda x, w, b: _normed(x, 1e-6, False) * w + b, _affine),
    "rms-gemma": Kernel(partial(rms_norm, rounding="gemma"), lambda x, w: _normed(x, 1e-6, False) * (1 + w), lambda d: [("w", (d,))]),
    "rms-bare": Kernel(lambda x, **o: rms_norm(x, None, **o), lambda x: _normed(x, 1e-6, False), lambda d: []),
    "dyt": Kernel(lambda x, a, w, b, **o: squash(x, "tanh", a, None, w, b, **o), lambda x, a, w, b: torch.tanh(a * x) * w + b, lambda d: [("a", ()), *_affine(d)]),
    "derf": Kernel(lambda x, a, s, w, b, **o: squash(x, "erf", a, s, w, b, **o), lambda x, a, s, w, b: torch.erf(a * x + s) * w + b, lambda d: [("a", ()), ("s", ()), *_affine(d)]),
    "add-layer": Kernel(add_layer_norm, lambda x, r, w, b: (_normed(x + r, 1e-5, True) * w + b, x + r), _affine, residual=True),
    "add-rms": Kernel(add_rms_norm, lambda x, r, w: (_normed(x + r, 1e-6, False) * w, x + r), lambda d: [("w", (d,))], residual=True),
    "add-rms-fp32": Kernel(partial(add_rms_norm, round_sum=False), lambda x, r, w: (_normed(x + r, 1e-6, False) * w, x + r), lambda d: [("w", (d,))], residual=True),
}  # fmt: skip


def parameters(kernel: Kernel, d: int, dtype: torch.dtype) -> list[Tensor]:
    """Gains about 1, offsets about 0, slopes about a half."""
    middle = {"w": 1.0, "b": 0.0, "a": 0.5, "s": 0.1}
    return [random(*shape, dtype=dtype, scale=0.3, shift=middle[name], seed=i + 5) for i, (name, shape) in enumerate(kernel.parameters(d))]


class Ear:
    """Listens to everything."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Tensor]] = []

    def wanted(self) -> bool:
        return True

    def add(self, tap, row) -> None:
        self.rows.append((tap, row))


@contextlib.contextmanager
def poisoned():
    """Memory that nothing was written to is NaN, and the Triton kernels are used."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with backend("triton"):
            yield
    finally:
        torch.use_deterministic_algorithms(before)


def error(got: Tensor, want: Tensor, floor: float = 1e-3) -> float:
    """Largest difference over the largest value, or over ``floor`` where all values are smaller."""
    got, want = got.detach(), want.detach()
    if not want.numel():
        assert got.shape == want.shape
        return 0.0
    return float((got.double() - want).abs().max() / want.abs().max().clamp(min=floor))


__all__ = [
    "DTYPES", "GRADIENTS", "KERNELS", "LAYOUTS", "Ear", "backend", "error", "parameters", "poisoned", "qk_norm", "random",
]  # fmt: skip
