"""Whether the kernels are right on a device, against plain PyTorch in float64."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stabilitylens.kernels import moments
from stabilitylens.kernels._choice import backend
from stabilitylens.kernels._gpu import norm
from stabilitylens.kernels.layer_norm import add_layer_norm, layer_norm
from stabilitylens.kernels.qk_norm import qk_norm
from stabilitylens.kernels.rms_norm import add_rms_norm, rms_norm
from stabilitylens.kernels.row_statistics import row_statistics, spans
from stabilitylens.kernels.squash import squash

#: row lengths that are timed with a target, in the order in which they count, and the others
IMPORTANT, REST = (4096, 8192, 16384, 65536, 32768), (1024, 2048, 1000, 100, 1)


def _off(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max().clamp(min=1e-3))


def _against_float64(call: Callable[..., Any], inputs: list[Tensor]) -> list[float]:
    """Of outputs and gradients."""
    outs: list[list[Tensor]] = []
    seeds: list[Tensor] = []
    for way, cast in (("triton", None), ("reference", torch.float64)):
        with backend(way):  # type: ignore[arg-type]
            leaves = [t.to(cast or t.dtype).requires_grad_() for t in inputs]
            found = call(*leaves)
            found = list(found) if isinstance(found, tuple) else [found]
            seeds = seeds or [torch.randn_like(t) for t in found]
            outs.append([*(t.detach() for t in found), *torch.autograd.grad(found, leaves, [t.to(u.dtype) for t, u in zip(seeds, found, strict=True)])])
    return [_off(a, b) for a, b in zip(*outs, strict=True)]


def _random(device: str, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Vectors are gains, about 1."""
    drawn = [torch.randn(s, device=device, dtype=dtype) for s in shapes]
    return [1 + 0.2 * t if t.dim() == 1 else t for t in drawn]


def _norm(device: str, d: int, dtype: torch.dtype, kind: str) -> list[float]:
    call = layer_norm if kind == "layer" else rms_norm
    return _against_float64(lambda *t: call(*t, eps=1e-5), _random(device, dtype, (33, d), *[(d,)] * (1 + (kind == "layer"))))


def _added(device: str, d: int, dtype: torch.dtype, kind: str) -> list[float]:
    call = add_layer_norm if kind == "layer" else add_rms_norm
    return _against_float64(lambda x, r, w: call(x, r, w, eps=1e-5), _random(device, dtype, (33, d), (33, d), (d,)))


def _squash(device: str, d: int, dtype: torch.dtype, function: Any) -> list[float]:
    slope = torch.tensor(0.5, device=device, dtype=dtype)
    return _against_float64(lambda x, w, b, a: squash(x, function, a, None, w, b), [*_random(device, dtype, (33, d), (d,), (d,)), slope])


def _pair(device: str, d: int, dtype: torch.dtype) -> list[float]:
    q, k, a, b = _random(device, dtype, (2, 5, 4, d), (2, 5, 2, d), (d,), (d,))
    return _against_float64(lambda q, k, a, b: qk_norm(q.transpose(1, 2), k.transpose(1, 2), a, b), [q, k, a, b])


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
    with backend("triton"):
        got = row_statistics(q, k, scale=0.5, seen=seen)
    with backend("reference"):
        want = row_statistics(q.double(), k.double(), scale=0.5, seen=seen)
    return [_off(getattr(got, n), getattr(want, n).double()) for n in ("largest", "lse", "entropy")]


Check = tuple[str, Callable[[], list[float]], float]
#: what is allowed for in each dtype
LIMITS = {torch.bfloat16: 2e-2, torch.float32: 2e-5, torch.float16: 3e-3}


def _of_dtype(device: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> Iterator[Check]:
    limit, bound = LIMITS[dtype], torch.finfo(dtype).eps + 1e-5
    for d, kind in itertools.product(sizes, ("rms", "layer")):
        yield f"{kind} d={d} {dtype}", partial(_norm, device, d, dtype, kind), limit
    for d in sizes:
        yield f"statistics d={d} {dtype}", partial(_statistics, device, d, dtype), bound


def _of_the_others(device: str, dtype: torch.dtype) -> Iterator[Check]:
    limit = LIMITS[dtype]
    for d in (64, 80, 128):
        yield f"attention D={d} {dtype}", partial(_attention, device, dtype, d), limit
    for d in (128, 64, 4096, 20000):
        yield f"qk-norm d={d} {dtype}", partial(_pair, device, d, dtype), limit
    for d, function in itertools.product((4096, 1000), ("tanh", "erf")):
        yield f"{function} d={d} {dtype}", partial(_squash, device, d, dtype, function), limit
    for d, kind in itertools.product((4096, 20000), ("rms", "layer")):
        yield f"add and {kind} d={d} {dtype}", partial(_added, device, d, dtype, kind), 2 * limit


def planned(device: str) -> list[Check]:
    """Every check, those of what is timed first."""
    return [
        check
        for dtype in LIMITS
        for check in (*_of_dtype(device, dtype, IMPORTANT), *_of_the_others(device, dtype), *_of_dtype(device, dtype, REST))
    ]


def checks(device: str, seconds: float) -> tuple[list[str], list[str]]:
    """What is wrong, a sentence each, and the names of what was not checked when the time was up."""
    began, wrong, todo = time.monotonic(), [], planned(device)
    while todo and time.monotonic() - began < seconds:
        name, check, limit = todo.pop(0)
        try:
            worst = max(check())
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:100]}")
            continue
        if not worst < limit:
            wrong.append(f"{name}: off by {worst:.1e}")
    return wrong, [name for name, _, _ in todo]
