"""The kernels on a GPU: right first, then how much of the memory's bandwidth they use.

    python -m benchmarks.gpu_kernels [--out FOLDER] [--seconds 400]

Norms forward and backward, with statistics and without, d from 1k to 64k in bf16, against torch, torch.compile, and
Liger and QuACK where installed; attention statistics against a flash forward; moments of many tensors against reading
them once. Nothing is reported of a kernel that is wrong. What is not done when the time is up is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks._gpu_checks import checks
from benchmarks._gpu_times import ELEMENTS, attention, many, milliseconds, norms

SIZES = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
#: what is asked for on an H200: share of the copy's bandwidth for d of 4096 and more, extra time, share of a flash forward
FORWARD, BACKWARD, STATISTICS, ATTENTION = 0.88, 0.80, 0.03, 0.8


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
