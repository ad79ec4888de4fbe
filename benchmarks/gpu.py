"""What a lens costs on an accelerator: step time, copies to the host, graphs, memory.

    python -m benchmarks.gpu [--device cuda] [--steps 200]

Time is wall time between synchronisations, over blocks of steps that alternate between the bare loop and the observed
one; copies are those that torch's profiler sees. ``--device cpu`` runs the same script, to see that it works.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks._gpu_training import BLOCK, Training, synchronize

WARM_UP = 2


def ratio(name: str, bare: Training, seen: Training, blocks: int) -> str:
    """Mean and median step time of one over the other, block by block in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(blocks + WARM_UP):
        for kind, loop in enumerate((bare, seen)):
            taken = loop.block()
            if i >= WARM_UP:
                times[kind].append(taken)
    bare.close()
    seen.close()
    mean, median = (f(times[1]) / f(times[0]) for f in (statistics.fmean, statistics.median))
    return f"| {name} | {1e3 * statistics.fmean(times[0]):.2f} ms | {mean:.3f} | {median:.3f} |"


def overhead(device: str, size: tuple[int, int, int, int], steps: int, folder: Path) -> Iterator[str]:
    """The table: eager and compiled, sampling never, every tenth step and every step."""
    yield "| loop | bare step | mean | median |\n|---|---|---|---|"
    for mode in (None, "default", "reduce-overhead"):
        for every in (10**9, 10, 1):
            name = f"{mode or 'eager'}, every={every}"
            torch._dynamo.reset()
            seen = Training(device, folder / name.replace(" ", "-"), size, mode, every=every)
            yield ratio(name, Training(device, None, size, mode), seen, max(1, steps // BLOCK))


def copies(device: str, size: tuple[int, int, int, int], folder: Path) -> str:
    """Copies to the host in a sampled step, and in one that is not, beyond those of the bare loop."""
    found = []
    for logdir in (None, folder / "copies"):
        loop = Training(device, logdir, size, None, every=4)
        counts = []
        for _ in range(8):
            with torch.profiler.profile() as profile:
                loop.step()
                synchronize(device)
            counts.append(sum("Memcpy DtoH" in event.name for event in profile.events() or ()))
        loop.close()
        found.append(counts)
    return f"copies to the host in steps 1 to 8: bare {found[0]}, observed with every=4 {found[1]}"


def memory(size: tuple[int, int, int, int], folder: Path) -> str:
    """Peak allocated memory with and without a lens."""
    peaks = []
    for logdir in (None, folder / "memory"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        loop = Training("cuda", logdir, size, None, every=2)
        for _ in range(4):
            loop.step()
        peaks.append(torch.cuda.max_memory_allocated())
        loop.close()
        del loop
    return f"peak memory: {peaks[0] / 2**20:.0f} MiB bare, {peaks[1] / 2**20:.0f} MiB observed, ratio {peaks[1] / peaks[0]:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", type=int, nargs=4, default=(12, 768, 8, 1024), metavar=("LAYERS", "WIDTH", "BATCH", "LENGTH"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device here: run this on a machine with one, or try the script with --device cpu")
    size = tuple(options.size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if options.device == 'cuda' else 'cpu'}, {size}", flush=True)
        print(copies(options.device, size, folder), flush=True)
        if options.device == "cuda":
            print(memory(size, folder), flush=True)
        for line in overhead(options.device, size, options.steps, folder):
            print(line, flush=True)


if __name__ == "__main__":
    main()
