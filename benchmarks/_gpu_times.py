"""How long the kernels take on a GPU, and those of others."""

from __future__ import annotations

import statistics
from collections.abc import Callable
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


def norms(d: int, copied: float, flush: Tensor, with_others: bool) -> list[dict[str, Any]]:
    """GB/s forward and backward of ours with statistics and without, and of the others."""
    rows = ELEMENTS // d
    x, dy = (torch.randn(rows, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    w = torch.ones(d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    table = []

    def note(kind: str, name: str, ms: float, bytes_an_element: int) -> None:
        rate = bytes_an_element * x.numel() / ms / 1e6
        table.append({"kind": kind, "name": name, "d": d, "ms": ms, "GB/s": rate, "share": rate * 1e9 / copied})

    for kind, mode in (("rms", norm.Mode(False, 1)), ("layer", norm.Mode(True))):
        b = w if kind == "layer" else None
        out = norm.forward(x, None, w, b, 1e-6, mode, False)
        for s in (False, True):
            label = f"ours {kind}{' + statistics' if s else ''}"
            note("forward", label, milliseconds(lambda: norm.forward(x, None, w, b, 1e-6, mode, s), flush), 4)  # noqa: B023
            back = milliseconds(lambda: norm.backward(dy, None, x, w, b is not None, out.mean, out.rstd, mode, s), flush)  # noqa: B023
            note("backward", label, back, 6)
    for name, call in others(d, x, w).items() if with_others else ():
        try:
            with torch.no_grad():
                note("forward", name, milliseconds(lambda: call(x), flush), 4)  # noqa: B023
            leaf = x.clone().requires_grad_()
            y = call(leaf)
            note("backward", name, milliseconds(lambda: torch.autograd.grad(y, (leaf, w), dy, retain_graph=True), flush), 6)  # noqa: B023
        except Exception as error:
            print(f"{name} at d={d} was left out: {type(error).__name__}: {str(error)[:100]}")
    return table


def attention(flush: Tensor) -> list[dict[str, Any]]:
    """Milliseconds of the statistics, of the mean logit with them, and of a flash forward."""
    table = []
    for length in (2048, 8192):
        for d in (64, 128):
            q, k, v = (torch.randn(2, 16, length, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
            seen = spans(length, length, causal=True, device="cuda")
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                flash = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), flush)  # noqa: B023
            ours = milliseconds(lambda: launch(q, k, seen.lo, seen.hi, d**-0.5, None, None, None), flush)  # noqa: B023
            whole = milliseconds(lambda: row_statistics(q, k, scale=d**-0.5, seen=seen), flush)  # noqa: B023
            table.append({"kind": "attention", "name": f"S={length} D={d}", "ms": ours, "flash ms": flash, "with mean ms": whole, "share": ours / flash})
    return table


def many(copied: float, flush: Tensor) -> dict[str, Any]:
    """Norms of many tensors, as a share of the copy's bandwidth."""
    tensors = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(24)]
    ms = milliseconds(lambda: norm_moments(tensors), flush)
    rate = 2 * sum(t.numel() for t in tensors) / ms * 1e3
    return {"kind": "tensors", "name": "24 x 4096 x 4096 bf16", "ms": ms, "GB/s": rate / 1e9, "share": rate / copied}
