"""The kernels on a GPU: right first, then how much of the memory's bandwidth they use.

    python -m benchmarks.gpu_kernels [--out FOLDER] [--seconds 400]

Norms forward and backward, with statistics and without, d from 1k to 64k in bf16, against torch, torch.compile, and
Liger and QuACK where installed; attention statistics against a flash forward; moments of many tensors against reading
them once. Nothing is reported of a kernel that is wrong. What is not done when the time is up is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks._gpu_checks import checks
from stabilitylens.kernels import norm_moments
from stabilitylens.kernels._gpu import norm
from stabilitylens.kernels.row_statistics import row_statistics, spans

SIZES = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
ELEMENTS = 1 << 26
#: what is asked for on an H200: share of the copy's bandwidth for d of 4096 and more, extra time, share of a flash forward
FORWARD, BACKWARD, STATISTICS, ATTENTION = 0.88, 0.80, 0.03, 0.8


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
        out = norm.forward(x, None, w, b, 1e-6, mode, 0)
        for s in (False, True):
            label = f"ours {kind}{' + statistics' if s else ''}"
            note("forward", label, milliseconds(lambda: norm.forward(x, None, w, b, 1e-6, mode, 2 * s), flush), 4)  # noqa: B023
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
    table = []
    for length in (2048, 8192):
        for d in (64, 128):
            q, k, v = (torch.randn(2, 16, length, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
            seen = spans(length, length, causal=True, device="cuda")
            from stabilitylens.kernels._gpu.attention_launch import launch

            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                flash = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), flush)  # noqa: B023
            ours = milliseconds(lambda: launch(q, k, seen.lo, seen.hi, d**-0.5, None, None, None), flush)  # noqa: B023
            whole = milliseconds(lambda: row_statistics(q, k, scale=d**-0.5, seen=seen), flush)  # noqa: B023
            table.append({"kind": "attention", "name": f"S={length} D={d}", "ms": ours, "flash ms": flash, "with mean ms": whole, "share": ours / flash})
    return table


def many(copied: float, flush: Tensor) -> dict[str, Any]:
    tensors = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(24)]
    ms = milliseconds(lambda: norm_moments(tensors), flush)
    rate = 2 * sum(t.numel() for t in tensors) / ms * 1e3
    return {"kind": "tensors", "name": "24 x 4096 x 4096 bf16", "ms": ms, "GB/s": rate / 1e9, "share": rate / copied}


def verdicts(table: list[dict[str, Any]]) -> list[str]:
    """What was asked for, and whether it is met."""
    said = []
    ours = [r for r in table if r["name"].startswith("ours") and r["d"] >= 4096]
    for kind, target in (("forward", FORWARD), ("backward", BACKWARD)):
        least = min((r["share"] for r in ours if r["kind"] == kind and "statistics" not in r["name"]), default=float("nan"))
        said.append(f"{kind}: least share of the copy {least:.0%}, asked {target:.0%}: {'met' if least >= target else 'missed'}")
    plain = {(r["kind"], r["name"], r["d"]): r["ms"] for r in ours}
    extra = [ms / plain[kind, name.removesuffix(" + statistics"), d] - 1 for (kind, name, d), ms in plain.items() if name.endswith("statistics")]
    worst = max(extra, default=float("nan"))
    said.append(f"statistics: at most {worst:.1%} more, asked {STATISTICS:.0%}: {'met' if worst <= STATISTICS else 'missed'}")
    share = max((r["share"] for r in table if r["kind"] == "attention"), default=float("nan"))
    said.append(f"attention statistics: at most {share:.2f} of a flash forward, asked {ATTENTION}: {'met' if share <= ATTENTION else 'missed'}")
    return said


def plot(table: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, kind in zip(axes, ("forward", "backward"), strict=True):
        for name in dict.fromkeys(r["name"] for r in table if r["kind"] == kind):
            points = sorted((r["d"], r["share"]) for r in table if r["kind"] == kind and r["name"] == name)
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set(title=kind, xlabel="d", xscale="log", ylim=(0, 1.05), ylabel="share of a copy's bandwidth")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-kernels"))
    parser.add_argument("--seconds", type=float, default=400)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}")
    wrong = checks("cuda")
    if wrong:
        print("wrong, so nothing is timed:", *wrong, sep="\n  ")
        return 1
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    source, target = (torch.empty(ELEMENTS, dtype=torch.float32, device="cuda") for _ in range(2))
    copied = 8 * ELEMENTS / milliseconds(lambda: target.copy_(source), flush) * 1e3
    print(f"a copy moves {copied / 1e9:.0f} GB/s")
    table = [*attention(flush), many(copied, flush)]
    for d in SIZES:
        left = options.seconds - (time.monotonic() - began)
        if left < 20:
            print(f"d={d} was left out: the time is up")
            continue
        table += norms(d, copied, flush, with_others=left > 120)
    for row in table:
        print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{v}" for k, v in row.items()))
    print(*verdicts(table), sep="\n")
    (options.out / "table.json").write_text(json.dumps(table, indent=1))
    plot(table, options.out / "bandwidth.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
