"""Whether the kernels are right on a device, against plain PyTorch in float64."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from stabilitylens.kernels import moments
from stabilitylens.kernels._choice import backend
from stabilitylens.kernels._gpu import norm
from stabilitylens.kernels.layer_norm import layer_norm
from stabilitylens.kernels.qk_norm import qk_norm
from stabilitylens.kernels.rms_norm import rms_norm
from stabilitylens.kernels.row_statistics import row_statistics, spans
from stabilitylens.kernels.squash import squash

SIZES = (1, 100, 1000, 1024, 4096, 8192, 16384, 32768, 65536)


def _off(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max().clamp(min=1e-3))


def _norm(device: str, d: int, dtype: torch.dtype, kind: str) -> list[float]:
    x, dy = (torch.randn(33, d, device=device, dtype=dtype) for _ in range(2))
    w, b = (1 + 0.2 * torch.randn(d, device=device, dtype=dtype) for _ in range(2))
    weights = [w, b] if kind == "layer" else [w]
    call = layer_norm if kind == "layer" else rms_norm
    outs = []
    for way, cast in (("auto", dtype), ("reference", torch.float64)):
        with backend(way):  # type: ignore[arg-type]
            leaves = [t.to(cast).requires_grad_() for t in (x, *weights)]
            y = call(*leaves, eps=1e-5)
            outs.append([y.detach(), *torch.autograd.grad(y, leaves, dy.to(cast))])
    return [_off(a, b) for a, b in zip(*outs, strict=True)]


def _statistics(device: str, d: int, dtype: torch.dtype) -> list[float]:
    """Moments of input and output, of rows enough that a program takes several; that they change the output is an error of 1."""
    from stabilitylens.kernels._byproducts import forward_rows

    x = torch.randn(max(65, (1 << 24) // d), d, device=device, dtype=dtype)
    w = 1 + 0.2 * torch.randn(d, device=device, dtype=dtype)
    errors = []
    for mode in (norm.Mode(True), norm.Mode(False, norm.ROUNDINGS["llama"])):
        out = norm.forward(x, None, w, None, 1e-6, mode, True)
        assert out.statistics is not None
        errors.append(0.0 if torch.equal(out.y, norm.forward(x, None, w, None, 1e-6, mode, False).y) else 1.0)
        for got, tensor in zip(forward_rows(out.statistics, x.numel()), (x, out.y), strict=True):
            want = moments(tensor)
            errors += [float(abs(got[1] - want[1]) / want[2]), *(float(abs(got[f] / want[f] - 1)) for f in (3, 4))]
    return errors


def _attention(device: str, dtype: torch.dtype, d: int) -> list[float]:
    q, k = (torch.randn(1, 4, 300, d, device=device, dtype=dtype) for _ in range(2))
    seen = spans(300, 300, causal=True, device=device)
    got = row_statistics(q, k, scale=0.5, seen=seen)
    with backend("reference"):
        want = row_statistics(q.double(), k.double(), scale=0.5, seen=seen)
    return [_off(getattr(got, n), getattr(want, n).double()) for n in ("largest", "lse", "entropy")]


def _squash(device: str, dtype: torch.dtype) -> list[float]:
    x, w = torch.randn(33, 1000, device=device, dtype=dtype), torch.ones(1000, device=device)
    a = torch.tensor(0.5, device=device)
    with backend("reference"):
        want = squash(x.double(), "erf", a.double(), None, w.double(), w.double())
    return [_off(squash(x, "erf", a, None, w, w), want)]


def _pair(device: str, dtype: torch.dtype) -> list[float]:
    q, w = torch.randn(2, 5, 4, 128, device=device, dtype=dtype).transpose(1, 2), torch.ones(128, device=device, dtype=dtype)
    with backend("reference"):
        want = qk_norm(q.double(), q.double(), w.double(), w.double())
    return [_off(a, b) for a, b in zip(qk_norm(q, q, w, w), want, strict=True)]


def checks(device: str) -> list[str]:
    """What is wrong, a sentence each."""
    wrong = []
    dtypes = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
    for dtype, limit in dtypes.items():
        found = {f"{kind} d={d}": _norm(device, d, dtype, kind) for d, kind in itertools.product(SIZES[1:], ("rms", "layer"))}
        found |= {"derf": _squash(device, dtype), "qk-norm": _pair(device, dtype)}
        found |= {f"attention D={d}": _attention(device, dtype, d) for d in (64, 80, 128)}
        wrong += [f"{name} {dtype}: off by {max(errors):.1e}" for name, errors in found.items() if not max(errors) < limit]
        wrong += [f"statistics d={d} {dtype}: off" for d in SIZES[1:] if not max(_statistics(device, d, dtype)) < torch.finfo(dtype).eps + 1e-5]
    return wrong
