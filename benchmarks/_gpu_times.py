"""How long the kernels take on a GPU, and those of others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stabilitylens.kernels import norm_moments
from stabilitylens.kernels._gpu import norm
from stabilitylens.kernels._gpu.attention_launch import launch
from stabilitylens.kernels.row_statistics import row_statistics, spans

#: elements of a tensor whose rows are normalised
ELEMENTS = 1 << 26


def milliseconds(call: Callable[[], object], flush: Tensor, repeats: int = 20) -> float:
    """The median time of a call, each after the cache was overwritten."""
    for _ in range(3):
        call()
    taken = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    return statistics.median(taken)


def others(d: int, x: Tensor, w: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """RMSNorm by others, those that are installed."""
    found: dict[str, Callable[[Tensor], Tensor]] = {
        "torch": lambda t: F.rms_norm(t, (d,), w, 1e-6),
        "compile": torch.compile(lambda t: F.rms_norm(t, (d,), w, 1e-6), dynamic=False),
    }
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        found["liger"] = lambda t: LigerRMSNormFunction.apply(t, w, 1e-6, 0.0, "llama", False)
    except ImportError:
        pass
    try:
        from quack import rmsnorm

        found["quack"] = lambda t: rmsnorm(t, w, eps=1e-6)
    except ImportError:
        pass
    return found


@dataclass(frozen=True)
class Bench:
    """What is timed against: a copy's bytes a second, and what overwrites the cache."""

    copied: float
    flush: Tensor

    def row(self, kind: str, name: str, d: int, call: Callable[[], object], bytes_an_element: int) -> dict[str, Any]:
        """A row of the table about ELEMENTS elements."""
        ms = milliseconds(call, self.flush)
        rate = bytes_an_element * (ELEMENTS // d * d) / ms / 1e6
        return {"kind": kind, "name": name, "d": d, "ms": ms, "GB/s": rate, "share": rate * 1e9 / self.copied}


def _rows(d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, their gradients, a gain."""
    x, dy = (torch.randn(ELEMENTS // d, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return x, dy, torch.ones(d, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def norms(d: int, bench: Bench) -> Iterator[dict[str, Any]]:
    """GB/s forward and backward of ours, with statistics and without."""
    x, dy, w = _rows(d)
    for kind, mode in (("rms", norm.Mode(False, 1)), ("layer", norm.Mode(True))):
        b = w if kind == "layer" else None
        out = norm.forward(x, None, w, b, 1e-6, mode, False)
        for s in (False, True):
            name = f"ours {kind}{' + statistics' if s else ''}"
            yield bench.row("forward", name, d, lambda: norm.forward(x, None, w, b, 1e-6, mode, s), 4)  # noqa: B023
            yield bench.row("backward", name, d, lambda: norm.backward(dy, None, x, w, b is not None, out.mean, out.rstd, mode, s), 6)  # noqa: B023


def norms_of_others(d: int, bench: Bench) -> Iterator[dict[str, Any]]:
    """The same of others, of each what runs."""
    x, dy, w = _rows(d)
    for name, call in others(d, x, w).items():
        try:
            with torch.no_grad():
                yield bench.row("forward", name, d, lambda: call(x), 4)  # noqa: B023
            leaf = x.clone().requires_grad_()
            y = call(leaf)
            yield bench.row("backward", name, d, lambda: torch.autograd.grad(y, (leaf, w), dy, retain_graph=True), 6)  # noqa: B023
        except Exception as error:
            print(f"{name} at d={d} was left out: {type(error).__name__}: {str(error)[:100]}")


def attention(bench: Bench) -> Iterator[dict[str, Any]]:
    """Milliseconds of the statistics, of the mean logit with them, and of a flash forward."""
    flush = bench.flush
    for length in (2048, 8192):
        for d in (64, 128):
            q, k, v = (torch.randn(2, 16, length, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
            seen = spans(length, length, causal=True, device="cuda")
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                flash = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), flush)  # noqa: B023
            ours = milliseconds(lambda: launch(q, k, seen.lo, seen.hi, d**-0.5, None, None, None), flush)  # noqa: B023
            whole = milliseconds(lambda: row_statistics(q, k, scale=d**-0.5, seen=seen), flush)  # noqa: B023
            yield {"kind": "attention", "name": f"S={length} D={d}", "ms": ours, "flash ms": flash, "with mean ms": whole, "share": ours / flash}


def many(bench: Bench) -> Iterator[dict[str, Any]]:
    """Norms of many tensors, as a share of the copy's bandwidth."""
    tensors = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(24)]
    ms = milliseconds(lambda: norm_moments(tensors), bench.flush)
    rate = 2 * sum(t.numel() for t in tensors) / ms * 1e3
    yield {"kind": "tensors", "name": "24 x 4096 x 4096 bf16", "ms": ms, "GB/s": rate / 1e9, "share": rate / bench.copied}
