"""The kernels on a GPU: right first, then how much of the memory's bandwidth they use.

    python -m benchmarks.gpu_kernels [--out FOLDER] [--seconds 400] [--check 150]

Norms forward and backward, with statistics and without, d from 1k to 64k in bf16, against torch, torch.compile, and
Liger and QuACK where installed; attention statistics against a flash forward; moments of many tensors against reading
them once. Nothing is timed where a kernel is wrong. What is not checked in --check seconds, or not timed in --seconds, is
said; each row is printed and saved as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks._gpu_checks import checks
from benchmarks._gpu_times import ELEMENTS, Bench, attention, many, milliseconds, norms, norms_of_others

#: row lengths in the order in which they are timed
SIZES = (4096, 8192, 16384, 65536, 32768, 1024, 2048)
#: seconds that one part takes, kernels compiled included
PART = 25
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
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed; the table is complete")
        return

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


class Table:
    """Rows, each printed and saved as soon as it is there."""

    def __init__(self, path: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self._path = path

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{v}" for k, v in row.items()), flush=True)
        unfinished = self._path.with_suffix(".part")
        unfinished.write_text(json.dumps(self.rows, indent=1))
        unfinished.replace(self._path)


def parts(bench: Bench) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """What is timed, by name, what matters most first."""
    yield f"d={SIZES[0]}", norms(SIZES[0], bench)
    yield "attention", attention(bench)
    for d in SIZES[1:]:
        yield f"d={d}", norms(d, bench)
    yield "many tensors", many(bench)
    for d in SIZES:
        yield f"others at d={d}", norms_of_others(d, bench)


def measure(table: Table, bench: Bench, until: float) -> None:
    """All parts that there is time for; a part that fails costs none of the others."""
    for name, rows in parts(bench):
        if until - time.monotonic() < PART:
            print(f"{name} was left out: the time is up")
            continue
        try:
            for row in rows:
                table.add(row)
        except Exception as error:
            print(f"{name} was left out: {type(error).__name__}: {str(error)[:200]}", flush=True)


def bandwidth() -> Bench:
    """What a copy moves on this device."""
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    source, target = (torch.empty(ELEMENTS, dtype=torch.float32, device="cuda") for _ in range(2))
    copied = 8 * ELEMENTS / milliseconds(lambda: target.copy_(source), flush) * 1e3
    print(f"a copy moves {copied / 1e9:.0f} GB/s", flush=True)
    return Bench(copied, flush)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-kernels"))
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--check", type=float, default=150)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}", flush=True)
    wrong, unchecked = checks("cuda", options.check)
    print(f"checked in {time.monotonic() - began:.0f} s", *(f"not checked, the time was up: {name}" for name in unchecked), sep="\n", flush=True)
    if wrong:
        print("wrong, so nothing is timed:", *wrong, sep="\n  ")
        return 1
    table = Table(options.out / "table.json")
    measure(table, bandwidth(), began + options.seconds)
    print(*verdicts(table.rows), sep="\n", flush=True)
    plot(table.rows, options.out / "bandwidth.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
