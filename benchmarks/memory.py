"""Peak memory of a process that trains, with and without a lens: python -m benchmarks.memory SETTING {bare,lens}"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.loops import SETTINGS, Loop, ours

REPEATS = 3


def train(setting: str, observed: bool) -> int:
    """Peak resident memory in bytes after six steps; a bare process imports the lens, too."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(SETTINGS[setting].make(), ours(every=2) if observed else None, Path(folder))
        for _ in range(6):
            loop.step(SETTINGS[setting].batch())
        loop.close()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peaks(setting: str) -> Iterator[str]:
    """Medians over several processes."""
    found = {}
    for kind in ("bare", "lens"):
        command = [sys.executable, "-m", "benchmarks.memory", setting, kind]
        runs = [int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(REPEATS)]
        found[kind] = statistics.median(runs)
    yield f"{setting}: peak memory {found['bare'] / 2**20:.0f} MiB bare, {found['lens'] / 2**20:.0f} MiB with a lens: ratio {found['lens'] / found['bare']:.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("kind", choices=("bare", "lens"))
    asked = parser.parse_args()
    print(train(asked.setting, asked.kind == "lens"))
